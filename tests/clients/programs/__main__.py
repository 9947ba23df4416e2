"""`python -m tests.clients.programs [NAME ...] [--json]`: programs and agents against the real service.

Each program is installed at its pinned version into `build/clients`, and talks through a relay on loopback, which
notes its requests. Prints a line for each program: whether it works, how many requests it sent, which parameters had
no effect (the header `appliance-ignored`), and what was refused. Exits 1 where one fails. Needs Node.js 20 or newer
with npm, and the registries of Python and npm packages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.clients.programs import commands, installed
from tests.clients.programs.judging import Outcome
from tests.clients.programs.relay import SECONDS, Seen, relay
from tests.clients.programs.services import MAKERS, serving
from tests.clients.programs.table import BY_NAME, PROGRAMS, Program


def tried(row: Program, url: str, bodies: Path | None = None) -> dict[str, Any]:
    """Run a program against a service. Returns its row of the table. `bodies`: a folder for what it asks."""
    began = time.monotonic()
    packages = installed.place(row.place)
    with tempfile.TemporaryDirectory() as place, relay(url, row.script, bodies) as between:
        home, work = Path(place, "home"), Path(place, "work")
        home.mkdir()
        work.mkdir()
        command = row.command(commands.Setting(packages, home, work, between.url, row.model))
        try:
            done = subprocess.run(command.words, cwd=work, env=commands.environment(command, home), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
            why = row.right(Outcome(done, between.seen, work, row.expected))
        except subprocess.TimeoutExpired:
            why = f"it did not end within {SECONDS} s"
        return {"program": row.name, "version": row.version, "ok": not why, "why": why,
                "seconds": round(time.monotonic() - began), **_counted(between.seen)}


def _counted(seen: list[Seen]) -> dict[str, Any]:
    """What was asked for, what had no effect, and what was refused."""
    return {"requests": dict(Counter(f"{each.method} {each.path}" for each in seen)),
            "ignored": sorted({name for each in seen for name in each.ignored}),
            "cached": [each.cached for each in seen if each.altered],
            "refused": [f"{each.status} {each.method} {each.path}: {each.said}" for each in seen if each.status >= 400]}


def _line(result: dict[str, Any]) -> str:
    lines = [f"{'passed' if result['ok'] else 'FAILED'}  {result['program']} {result['version']}: "
             f"{sum(result['requests'].values())} requests in {result['seconds']} s, "
             f"ignored: {', '.join(result['ignored']) or 'nothing'}"]
    return "\n".join([*lines, *(f"        {each}" for each in [result["why"], *result["refused"]] if each)])


def main() -> int:
    """Try the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BY_NAME)} (default: all)")
    parser.add_argument("--bodies", type=Path, metavar="FOLDER", help="write what programs ask for into this folder")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each program")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in BY_NAME]:
        parser.error(f"{', '.join(unknown)}: not a program; there are {', '.join(BY_NAME)}")
    rows = [row for row in PROGRAMS if row.name in (args.names or BY_NAME)]
    passed = 0
    for model in MAKERS:
        if those := [row for row in rows if row.model == model]:
            with serving(model) as server:
                for row in those:
                    result = tried(row, server.url, args.bodies)
                    print(json.dumps(result) if args.json else _line(result), flush=True)
                    passed += result["ok"]
    if not args.json:
        print(f"{passed} of {len(rows)} programs work")
    return 0 if passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
