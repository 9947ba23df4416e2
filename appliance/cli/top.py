"""`appliance top URL`: the load of a running appliance in a terminal, from verified connections."""

from __future__ import annotations

import argparse
import json
import sys
import time

from appliance.cli import administering, numbers, verifying
from appliance.errors import ApplianceError, AttestationError
from appliance.monitoring.asking import Asker, Reading
from appliance.monitoring.load import Load
from appliance.monitoring.top import frame

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help=administering.URL)
    verifying.add_reference(parser)
    administering.add_key(parser, "auditor or admin")
    verifying.add_accept(parser)
    parser.add_argument("--every", metavar="SECONDS", type=numbers.decimal(1, 3600), default=2.0,
                        help="time from one picture to the next (default: %(default).0f)")
    parser.add_argument("--once", action="store_true", help="print one picture, of all since the boot, and end")
    parser.add_argument("--json", action="store_true", help="report an error as JSON; pictures stay text")
    parser.epilog = administering.EXIT_CODES


def run(args: argparse.Namespace) -> int:
    """Verify; then draw until a signal comes."""
    asker = Asker(verifying.verifier(args), args.url, administering.api_key(args), verifying.accepted(args))
    if (code := verified(asker, as_json=args.json)) is not None:
        return code
    before: Reading | None = None
    while True:
        try:
            now = asker.read()
            text = frame(Load(now, before))
            before = now
        except ApplianceError as error:
            if args.once or before is None:
                raise
            text = f"{args.url}: {error}"
        print(f"{CLEAR if sys.stdout.isatty() and not args.once else ''}{text}", flush=True)
        if args.once:
            return 0
        time.sleep(args.every)


def verified(asker: Asker, *, as_json: bool) -> int | None:
    """Verify the appliance; the exit code of a verdict that will not do, which is then printed."""
    try:
        asker.verify()
    except AttestationError as error:
        if not asker.verdicts:
            raise
        code = asker.verdicts[0].exit_code
        print(json.dumps({"exit_code": code, **error.as_json()}) if as_json else f"error[{error.code}]: {error}",
              file=sys.stdout if as_json else sys.stderr)
        return code
    return None
