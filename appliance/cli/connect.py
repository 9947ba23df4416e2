"""`appliance connect URL…`: a local port behind which is nothing but appliances that were verified
just now."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from types import FrameType

from appliance.cli import numbers, signals, verifying
from appliance.client import Verdict, target
from appliance.client.channel import LIFE_SECONDS
from appliance.client.fleet.pool import Fleet
from appliance.client.fleet.renewal import Renewal
from appliance.client.proxy import Proxy, check_address, diverted
from appliance.errors import ApplianceError, AttestationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="https://HOST:PORT, vsock://CID:PORT, or "
                        "http://127.0.0.1:PORT (simulated); of several, each is verified, and requests are spread")
    verifying.add_reference(parser)
    verifying.add_overlap(parser)
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


class _Teller:
    """Prints verdicts: each of one appliance, and of several only what is another than before."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._json, self._several = args.json, len(args.urls) > 1
        self._lock = threading.Lock()
        self.first: dict[str, Verdict] = {}
        self._last: dict[str, tuple[str, str, bytes]] = {}

    def verdict(self, verdict: Verdict) -> None:
        """Print a verdict."""
        with self._lock:
            self.first.setdefault(verdict.target, verdict)
            word = (verdict.status, verdict.code, verdict.policy_sha384)
            if self._several and self._last.get(verdict.target) == word:
                return
            self._last[verdict.target] = word
            print(json.dumps({"event": "verdict", **verdict.as_json()}) if self._json else verdict,
                  file=sys.stderr, flush=True)

    def error(self, error: ApplianceError, code: int) -> None:
        """Print an error."""
        print(json.dumps({"event": "error", "exit_code": code, **error.as_json()}) if self._json else
              f"error[{error.code}]: {error}", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Verify once; then listen until a signal comes."""
    check_address(args.listen[0])
    endpoints = list(dict.fromkeys(map(target.endpoint, args.urls)))
    teller = _Teller(args)
    judge = Renewal(lambda: verifying.judge(args), verifying.files(args), tell=lambda error: teller.error(error, 2))
    fleet = Fleet(judge, endpoints, life=args.life, accept=verifying.accepted(args), tell=teller.verdict)
    try:
        fleet.verify()
    except AttestationError as error:
        first = teller.first.get(str(endpoints[0]))
        if first is None:
            raise
        teller.error(error, first.exit_code)
        return first.exit_code
    if len(endpoints) > 1 or args.until is not None:
        fleet.watch()
    with Proxy(fleet, *args.listen) as proxy:
        _serve(proxy, as_json=args.json)
    fleet.close()
    return 0


def _serve(proxy: Proxy, *, as_json: bool) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=proxy.shutdown, daemon=True).start()

    for number in signals.ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    print(json.dumps({"event": "ready", "listening": proxy.url}) if as_json else f"ready: {proxy.url}/v1",
          file=sys.stderr, flush=True)
    if (other := diverted(proxy.url)) is not None:
        _warn(other, as_json=as_json)
    proxy.serve_forever(poll_interval=0.2)
