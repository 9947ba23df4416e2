"""`appliance watch URL…`: verify appliances on a schedule, and export verdicts and their age as
metrics."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path

from appliance.attestation import keyfile
from appliance.cli import numbers, verifying
from appliance.client import target
from appliance.monitoring.listening import Listener, Page
from appliance.monitoring.watching import Sight, Watch

EVERY_SECONDS = 300.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("urls", metavar="URL", nargs="+",
                        help="https://HOST:PORT, vsock://CID:PORT, or http://127.0.0.1:PORT (simulated)")
    verifying.add_reference(parser)
    verifying.add_overlap(parser)
    verifying.add_accept(parser)
    parser.add_argument("--once", action="store_true", help="verify each once, print the verdicts, and end")
    parser.add_argument("--every", metavar="SECONDS", type=numbers.decimal(1, 86_400), default=EVERY_SECONDS,
                        help="time from one round to the next (default: %(default).0f)")
    parser.add_argument("--textfile", metavar="FILE.prom", type=Path,
                        help="write the metrics here after each round, for node_exporter's textfile collector")
    parser.add_argument("--listen", metavar="ADDRESS:PORT", type=numbers.address(0, "127.0.0.1:9102"),
                        help="answer GET /metrics here; the metrics hold no secret")
    parser.add_argument("--json", action="store_true", help="print verdicts as lines of JSON")
    parser.epilog = ("Files are read anew for each round. Without --once, a verdict is printed when it changes.\n"
                     "exit codes of --once: 0 each verdict will do; else that of the first which does not "
                     "(see appliance verify);\nwithout it: ended by a signal")


def run(args: argparse.Namespace) -> int:
    """Verify once, or until a signal comes."""
    for url in args.urls:
        target.endpoint(url)
    verifying.judge(args)  # what is wrong at the start is an error, and later a verdict
    watch = Watch(args.urls, lambda: verifying.judge(args), verifying.accepted(args))
    with contextlib.ExitStack() as closing:
        if args.listen is not None:
            listener = Listener(args.listen, {"/metrics": lambda: Page(watch.text(), TEXT)})
            closing.callback(listener.close)
            print(json.dumps({"event": "ready", "listening": f"{listener.url}/metrics"}) if args.json else
                  f"ready: {listener.url}/metrics", flush=True)
        while True:
            begun = time.monotonic()
            for sight, changed in watch.look():
                if changed:
                    _print(sight, as_json=args.json)
            if args.textfile is not None:
                keyfile.write_whole(args.textfile, watch.text())
            if args.once:
                return watch.exit_code
            time.sleep(max(0.0, begun + args.every - time.monotonic()))


def _print(sight: Sight, *, as_json: bool) -> None:
    print(json.dumps({"event": "verdict", "good": sight.good, **sight.said}) if as_json else sight.text, flush=True)
