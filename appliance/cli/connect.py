"""`appliance connect URL`: a local port behind which is nothing but an appliance that was verified
just now."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from types import FrameType

from appliance.cli import numbers, signals, verifying
from appliance.client import Channel, Verdict, target
from appliance.client.channel import LIFE_SECONDS
from appliance.client.proxy import Proxy, check_address, diverted
from appliance.errors import AttestationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help="https://HOST:PORT, vsock://CID:PORT, or "
                        "http://127.0.0.1:PORT (simulated)")
    verifying.add_reference(parser)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", type=numbers.address(0, "127.0.0.1:8080"),
                        default=("127.0.0.1", 0),
                        help="the loopback address and port to listen on (default: 127.0.0.1 and a free port)")
    parser.add_argument("--life", metavar="SECONDS", type=numbers.SECONDS, default=LIFE_SECONDS,
                        help="verify again after this long (default: %(default).0f); another TLS key at once")
    verifying.add_accept(parser)
    parser.add_argument("--json", action="store_true", help="write verdicts and the address as lines of JSON")
    parser.epilog = ("Point an SDK at http://ADDRESS:PORT/v1. Nothing of a request leaves before\n"
                     "the appliance is verified.\n"
                     "exit codes: 0 ended by a signal; before it listens, that of the verdict (see appliance verify)")


def _warn(other: str, *, as_json: bool) -> None:
    said = f"the environment sends SDKs to the proxy {other} first, with prompts in the clear"
    hint = "set NO_PROXY=127.0.0.1,localhost,::1 where the SDK runs"
    print(json.dumps({"event": "warning", "code": "environment-proxy", "reason": said, "hint": hint}) if as_json else
          f"warning[environment-proxy]: {said}\n  hint: {hint}", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Verify once; then listen until a signal comes."""
    check_address(args.listen[0])
    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        print(json.dumps({"event": "verdict", **verdict.as_json()}) if args.json else verdict, file=sys.stderr,
              flush=True)

    channel = Channel(verifying.verifier(args), target.endpoint(args.url), life=args.life,
                      accept=verifying.accepted(args), tell=tell)
    try:
        channel.verify()
    except AttestationError as error:
        if not verdicts:
            raise
        code = verdicts[-1].exit_code
        print(json.dumps({"event": "error", "exit_code": code, **error.as_json()}) if args.json else
              f"error[{error.code}]: {error}", file=sys.stderr)
        return code
    with Proxy(channel, *args.listen) as proxy:
        def stop(_number: int, _frame: FrameType | None) -> None:
            threading.Thread(target=proxy.shutdown, daemon=True).start()

        for number in signals.ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, stop)
        print(json.dumps({"event": "ready", "listening": proxy.url}) if args.json else f"ready: {proxy.url}/v1",
              file=sys.stderr, flush=True)
        if (other := diverted(proxy.url)) is not None:
            _warn(other, as_json=args.json)
        proxy.serve_forever(poll_interval=0.2)
    channel.close()
    return 0
