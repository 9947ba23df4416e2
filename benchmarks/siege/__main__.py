"""`python -m benchmarks.siege`: what hostile tenants cost the others, case by case.

An appliance with 68 tenants, and its log on a state disk, serves on the loopback. In each case the
clients of one tenant, or of 64, do something that is made to cost. Beside them `/health` is asked
every 20 ms, and a neighbour streams short answers. The same is measured beside as many ordinary
clients, whose requests are as long. At the end come requests of all kinds, mixed. All of it takes
about eight minutes. Exit code 1 says that a promise was not kept, and names it:

    health    p99 of `/health` is at most 100 ms, and none takes more than 500 ms
    first     the neighbour's first token takes at most twice of what it does beside the ordinary: p50 and p90
    served    each of both is answered
    flat      memory does not grow from the first quarter of the mixed requests to their end
    recorded  the audit log has each request or counts it, and reports no fault

Milliseconds are right only on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.process import Engine
from benchmarks.siege import books, mixed, siege
from benchmarks.siege.cases import CASES, Row
from benchmarks.siege.deployed import deployment, disk, records
from benchmarks.tenants.served import Served

MIXED, BOOKS = "mixed requests", "audit log"
Found = dict[str, dict[str, Any]]


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.siege", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--seconds", type=numbers.whole(1, 600), default=8, help="of each case (default: %(default)s)")
    parser.add_argument("--requests", type=numbers.whole(0, 1_000_000), default=3000,
                        help="of all kinds, mixed; 0: none (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="WORDS", help="cases with these words in their names")
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of a table")
    commandline.options(parser, "siege.json")
    args = commandline.parse(parser)
    cases = {name: row for name, row in CASES.items() if args.only is None or any(words in name for words in args.only)}
    load, begun = os.getloadavg()[0], time.monotonic()
    found = besieged(args, cases)
    missed = [f"{name}: {', '.join(each['missed'])}" for name, each in found.items() if each["missed"]]
    document = {"rows": found, "missed": missed, "machine": report.machine(), "load_average": load,
                "seconds": round(time.monotonic() - begun)}
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1) if args.json else table(document))
    return int(bool(missed))


def besieged(args: argparse.Namespace, cases: Mapping[str, Row]) -> Found:
    """All cases, one after the other, the mixed requests, and what the audit log says of them."""
    found: Found = {}
    with contextlib.ExitStack() as stack:
        folder, device = Path(stack.enter_context(tempfile.TemporaryDirectory())), stack.enter_context(disk())
        watch = stack.enter_context(_watching())
        served = stack.enter_context(Served(deployment(commandline.model(args.model, args.work), folder, device)))
        os.nice(10)  # clients of tenants run on machines of their own
        besieging = siege.Siege(served.port, watch, args.seconds)
        bar = stack.enter_context(tqdm(total=len(cases) + bool(args.requests), file=sys.stderr, unit="case"))
        for name, row in cases.items():
            bar.set_description(name)
            found[name] = asyncio.run(besieging.case(row))
            bar.update()
        if args.requests:
            bar.set_description(MIXED)
            besieging.field.statuses = Counter()
            found[MIXED] = asyncio.run(mixed.run(served, besieging.field, args.requests))
            bar.update()
        code, log = served.end(), records(device)
    lost = [*books.unrecorded(besieging.field.heads, log), *books.faults(log), *([f"exit code {code}"] if code else [])]
    found[BOOKS] = {"requests": len(besieging.field.heads), "records": len(log), "lost": lost,
                    "missed": ["recorded"] if lost else []}
    return found


@contextlib.contextmanager
def _watching() -> Iterator[Engine]:
    watch = Engine("watch", "siege.watch")
    try:
        yield watch
    finally:
        watch.close()


def table(document: Mapping[str, Any]) -> str:
    """The document in words."""
    rows: Found = document["rows"]
    lines = [siege.HEADING, *(siege.line(name, each) for name, each in rows.items() if "health_ms" in each)]
    lines += [f"{name}: {why}" for name, each in rows.items() for why in each.get("failed", ())]
    if (course := rows.get(MIXED)) is not None:
        sizes = ", ".join(f"{name} {course[f'memory_{name}'] >> 20}" for name in ("warm", "most", "end"))
        lines.append(f"{course['requests']} mixed requests in {course['seconds']:.0f} s; memory, MiB: {sizes}; "
                     f"{course['statuses']}")
    lines.append(f"audit log: {rows[BOOKS]['records']} records of {rows[BOOKS]['requests']} requests; "
                 + ("; ".join(rows[BOOKS]["lost"]) or "nothing is missing"))
    lines.append(f"{document['seconds']} s; load average at the start {document['load_average']:.1f}")
    return "\n".join([*lines, *(f"MISSED  {each}" for each in document["missed"])])


if __name__ == "__main__":
    commandline.run(main)
