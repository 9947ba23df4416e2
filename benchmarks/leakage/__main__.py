"""`python -m benchmarks.leakage`: what an onlooker can tell of requests, by policy.

A service by the policy runs as a process and is asked over TLS, through a relay that is the
onlooker. Requests come in pairs that differ in one thing; a coin decides for each trial. Gradient-
boosted trees and a small network learn on one half of the trials what gives the coin away, and are
judged on the other half, in turns.

Prints a table: right answers in percent, where chance has 50, and bits, each with its upper bound
of 95%. Exit code 1 says that a cell is above --most, also after it was run once more with four
times the trials; cells that show by design do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from appliance.cli import numbers
from appliance.policy import load, policy_digest
from benchmarks import commandline, report
from benchmarks.leakage import document, verdicts
from benchmarks.leakage.deployed import SETTINGS, Measured, measured
from benchmarks.leakage.features import OBSERVERS, Observed, Table
from benchmarks.leakage.pairs import PAIRS, SHOWN
from benchmarks.leakage.trials import Ports, drawn, run
from benchmarks.tenants.served import Served

AGAIN = 4  # times as many trials for a cell that misses
SERVICE, ONLOOKER = 20, 40  # priorities, as if each had a machine of its own, and clients another
WARMING = 2  # trials of each pair and lane before those that count


def observe(deployment: Measured, pairs: Sequence[str], trials: int, args: argparse.Namespace) -> dict[
        verdicts.Cell, Table]:
    """Run trials on a service of their own; return what each observer saw of each pair."""
    policy, padding = deployment.loaded, deployment.loaded.privacy.timing_padding
    interval = 0.0 if padding is None else padding.cadence_ms / 1000
    _prefer(args, SERVICE)
    with Served(deployment) as served, tempfile.TemporaryDirectory(prefix="leakage-") as folder:
        out = Path(folder) / "events.npy"
        _prefer(args, ONLOOKER)
        with subprocess.Popen([sys.executable, "-m", "benchmarks.leakage.relay", str(served.port), str(served.pid),
                               str(served.log), str(out), str(interval)], stdout=subprocess.PIPE, text=True) as relay:
            assert relay.stdout is not None
            _prefer(args, 0)
            try:
                ports = Ports(int(relay.stdout.readline()), served.port)
                common: dict[str, Any] = {"model": policy.models[0].name, "receipts": policy.audit.receipts,
                                          "stream": not args.whole}
                warming = drawn(pairs, WARMING * args.lanes, random.Random(0))
                asyncio.run(run(ports, args.lanes, warming, done=lambda: None, seconds=60 * args.minutes, **common))
                listed = drawn(pairs, trials, random.Random(args.seed))
                with tqdm(total=len(listed), unit=" trials", disable=args.json or None, mininterval=1) as bar:
                    seen = asyncio.run(run(ports, args.lanes, listed, done=bar.update, seconds=60 * args.minutes,
                                           **common))
            finally:
                relay.send_signal(signal.SIGTERM)
        observed = Observed(seen, np.load(out), served.log, interval)
        return {(pair, observer): observed.table(pair, observer) for pair in pairs for observer in args.observers}


def measure(deployment: Measured, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all cells. Those above `args.most` were run once more, with four times the trials."""
    def cells(pairs: Sequence[str], trials: int, *, again: bool) -> dict[verdicts.Cell, dict[str, Any]]:
        tables = observe(deployment, pairs, trials, args)
        if args.tables is not None:
            np.savez(args.tables.with_stem(args.tables.stem + "-again" * again), **verdicts.arrays(tables))
        with tqdm(total=2 * len(tables), unit=" classifiers", disable=args.json or None) as bar:
            found = verdicts.judge(tables, args.work, lambda _: bar.update() and None)
        return {each: document.cell(*each, verdict, again=again) for each, verdict in found.items()}

    found = cells(args.pairs, args.trials, again=False)
    missed = [cell for cell, each in found.items() if is_above(each, args.most)]
    if missed and args.again:
        pairs = [pair for pair in args.pairs if any(pair == each for each, _ in missed)]
        again = cells(pairs, AGAIN * args.trials, again=True)
        found |= {cell: again[cell] for cell in missed if cell in again}
    return list(found.values())


def is_above(cell: Mapping[str, Any], most: int) -> bool:
    """Return whether a cell has a bound above so many percent, and does not show by design."""
    return cell["at_most"] > most / 100 and (cell["pair"], cell["observer"]) not in SHOWN


def _prefer(args: argparse.Namespace, priority: int) -> None:
    """Give what is started from now on a real-time priority, 0: an ordinary one, with `--apart`."""
    if args.apart:
        os.sched_setscheduler(0, os.SCHED_RR if priority else os.SCHED_OTHER, os.sched_param(priority))


def _listed(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if strange := [each for each in found if each not in known]:
            raise argparse.ArgumentTypeError(f"{strange[0]!r} is unknown; known: {', '.join(known)}")
        return found

    return read


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.leakage", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--policy", default="strict", metavar="POLICY",
                      help=f"{', '.join(SETTINGS)}, or a file (default: %(default)s)")
    made.add_argument("--pairs", type=_listed(list(PAIRS)), default=list(PAIRS), metavar="PAIR,…",
                      help=f"of {', '.join(PAIRS)} (default: all)")
    made.add_argument("--observers", type=_listed(OBSERVERS), default=list(OBSERVERS), metavar="OBSERVER,…",
                      help=f"of {', '.join(OBSERVERS)} (default: all)")
    made.add_argument("--trials", type=numbers.whole(10, 1_000_000), default=400, help="of each pair (default: 400)")
    made.add_argument("--lanes", type=numbers.whole(1, 256), default=4, help="connections at once (default: 4)")
    made.add_argument("--minutes", type=numbers.whole(1, 6000), default=600,
                      help="end after so long, with the trials that there are")
    made.add_argument("--most", type=numbers.whole(50, 100), default=52, metavar="PERCENT",
                      help="the upper bound that a cell may have (default: %(default)s)")
    made.add_argument("--again", action="store_true", help="run pairs with a cell above that once more")
    made.add_argument("--whole", action="store_true", help="ask for whole answers, not for streams")
    made.add_argument("--model", metavar="MODEL", help=f"{commandline.NAMES}, or a GGUF file (default: the policy's)")
    made.add_argument("--streamed", type=numbers.whole(64, 1 << 20), default=0, metavar="MIB",
                      help="seal the model, and serve it in so much memory that passes read it from the disk; else "
                      "`disk` has nothing to see")
    made.add_argument("--apart", action="store_true", help="give the service a real-time priority, and the onlooker a "
                      "higher one, as on machines of their own; needs the right to")
    made.add_argument("--seed", type=int, default=1, help="of the coins")
    made.add_argument("--json", action="store_true", help="print the document instead of the table, and no progress")
    made.add_argument("--work", type=Path, default=Path("build/bench"), metavar="DIR",
                      help="where the classifiers' environment is kept (default: %(default)s)")
    made.add_argument("--tables", type=Path, metavar="FILE.npz",
                      help="keep what was observed, trial by trial, for classifiers of your own")
    made.add_argument("-o", "--output", type=Path, metavar="FILE",
                      help="the JSON document (default: leakage-POLICY.json in there)")
    return made


def main() -> int:
    """Measure and report."""
    args = parser().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    deployment = measured(args.policy, args.lanes, model=args.model, work=args.work, mebibytes=args.streamed)
    name = deployment.policy.stem
    cells = measure(deployment, args)
    policy = load(deployment.policy)
    found = document.document({
        "policy": name, "policy_sha384": policy_digest(policy.policy).hex(), "model": deployment.model.name,
        "trials": args.trials, "lanes": args.lanes, "streamed": not args.whole, "machine": report.machine(),
        "load_average": round(os.getloadavg()[0], 1)}, cells)
    output = args.output or args.work / f"leakage-{name}.json"
    output.write_text(json.dumps(found, indent=1) + "\n")
    output.with_suffix(".md").write_text(document.markdown(found))
    print(json.dumps(found) if args.json else document.markdown(found))
    return int(any(is_above(each, args.most) for each in cells))


if __name__ == "__main__":
    commandline.run(main)
