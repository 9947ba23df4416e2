"""`make soak`: what takes too long for `make test`. Long fuzzing of every parser, all cases of tests that go through a
sample otherwise, tests without each tool, load, client libraries, agents and other programs at their locked versions,
requests made from the API's document, and mutation testing.

    python -m tests.soak [--minutes-per-target 10] [--skip mutation]

Runs every stage even when one fails, prints a summary, and exits 1 when any stage failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _stage(name: str, command: list[str]) -> tuple[str, bool, float]:
    print(f"== {name}: {' '.join(command)}", flush=True)
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False)
    return name, done.returncode == 0, time.monotonic() - began


def stages(minutes: float, skip: set[str]) -> list[tuple[str, list[str]]]:
    """Return the stages as (name, command): one fuzz stage per target, then every case of tests that otherwise take
    samples, tests without each tool, load, client libraries and programs, the API's document, and mutation testing."""
    targets = sorted(path.name.removesuffix("_fuzz.py") for path in (ROOT / "tests/fuzz").glob("*_fuzz.py"))
    found = [(f"fuzz {target}", [sys.executable, "-m", "tests.fuzz.driver", target, "--seconds", str(60 * minutes)])
             for target in targets]
    found.append(("extent", ["env", "APPLIANCE_TESTS_EXTENT=all", sys.executable, "-m", "pytest", "-q", "-n", "2",
                             "--no-loadscope-reorder", "-m", "not soak and not guests"]))
    found.append(("absent", [sys.executable, "-m", "tests.absent"]))
    found.append(("load", ["env", "APPLIANCE_TESTS_EXTENT=all", sys.executable, "-m", "pytest", "-q", "-m", "soak",
                           "-p", "no:cacheprovider"]))
    found.append(("clients", [sys.executable, "-m", "tests.clients"]))
    found.append(("programs", [sys.executable, "-m", "tests.clients.programs"]))
    found.append(("document", [sys.executable, "-m", "tests.clients.document"]))
    found.append(("mutation", [sys.executable, "-m", "tests.mutation"]))
    return [(name, command) for name, command in found if name.split()[0] not in skip]


def main() -> int:
    """Run all stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes-per-target", type=float, default=10)
    parser.add_argument("--skip", action="append", default=[],
                        choices=["fuzz", "extent", "absent", "load", "clients", "programs", "document", "mutation"])
    args = parser.parse_args()
    results = [_stage(name, command) for name, command in stages(args.minutes_per_target, set(args.skip))]
    for name, passed, seconds in results:
        print(f"{'passed' if passed else 'FAILED'}  {name}  {seconds:.0f} s")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
