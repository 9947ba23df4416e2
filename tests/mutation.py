"""Mutation testing of twelve modules of twelve rooms: would the tests notice a fault?

    python -m tests.mutation [--module appliance/audit/chain.py ...] [--sample 12 | --all] [--seed 1]
                             [--slack SECONDS] [--json FILE]

Works on a copy of the repository. One run of the tests of these modules (see `test_files`), under coverage, says which
test runs which line. Then a seeded random sample of the mutants of each module (see `tests.support.mutants`) is tried,
one at a time, against the tests that run the mutated line, quickest first; for a line that runs at import, against
those that run its file and then all of its room. A failing test, a crash or a time-out kills a mutant; one on a line
that no test runs has survived. Prints the survivors and a score for each module. Exits 1 when all modules together
score less than 80%, 2 when the tests fail without a mutant.

Tests in other processes are left out: coverage does not tell which of them runs a line. Files that cost more than
`SLOW` seconds are left out as well, so what survives here may be killed by them.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests.support.costs import COSTS
from tests.support.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
_LONGEST = 3600  # seconds of all tests of the modules
MODULES = (
    "appliance/attestation/snp/judging/validate.py", "appliance/audit/chain.py", "appliance/auditor/records.py",
    "appliance/boot/planning/fitness.py", "appliance/client/needs.py", "appliance/text/jinja/operators.py",
    "appliance/models/sealed/order.py", "appliance/policy/loading.py", "appliance/sealing/restore.py",
    "appliance/service/admission/privacy.py", "appliance/signed/releases.py", "appliance/transparency/note.py")
REQUIRED = 0.80
LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "htmlcov", "*.log")
SLOW = 15.0  # seconds of a processor, of a file of tests, by the table of costs
SLACK = 10.0  # seconds that a test may take beside four times its own, and all tests of a mutant together twice


def copy_tree(target: Path) -> None:
    """Copy the repository; what was built is linked. Compiled files are checked by hash: no stale one is ever run."""
    shutil.copytree(ROOT, target, ignore=LEFT_BEHIND)
    if (ROOT / "build").exists():
        (target / "build").symlink_to(ROOT / "build")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "appliance"],
                   cwd=target, check=True)


def test_files(tree: Path, module: str) -> list[str]:
    """Return the files that test a module: those of its package, and others that import it; none that is slow."""
    package = module.split("/")[1]
    dotted = module.removesuffix(".py").replace("/", ".")
    room, _, name = dotted.rpartition(".")
    imports = re.compile(rf"^(?:from|import) (?:{re.escape(dotted)}\b|{re.escape(room)} import .*\b{name}\b)",
                         re.MULTILINE)
    found = []
    for path in sorted((tree / "tests").rglob("test_*.py")):
        file = path.relative_to(tree).as_posix()
        if COSTS.get(file, 0) <= SLOW and (file.split("/")[1] == package or imports.search(path.read_text())):
            found.append(file)
    return found


class Worker:
    """The process that runs pytest in forks of itself, in the copy."""

    def __init__(self, tree: Path) -> None:
        vectors = str(ROOT.parent / "shared" / "vectors")
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1",
                       "OPENBLAS_NUM_THREADS": "1", "APPLIANCE_VECTORS": os.environ.get("APPLIANCE_VECTORS", vectors)}
        self.tree = tree
        self.process = subprocess.Popen([sys.executable, "-m", "tests.support.mutant_worker"], cwd=tree, text=True,
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, files: list[str], select: list[str] | None, seconds: float, *more: str,
            report: Path | None = None) -> dict[str, Any]:
        """Run tests; return `exit` (None after a time-out) and `seconds`."""
        assert self.process.stdin
        assert self.process.stdout
        arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "--tb=line", *more, *files]
        job = {"args": arguments, "select": select, "seconds": seconds, "report": str(report) if report else None}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def log(self) -> str:
        """What the last run printed."""
        return (self.tree / "mutant.log").read_text(errors="replace")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Baseline:
    """Which test runs which line, and how long each test takes."""

    def __init__(self, worker: Worker, modules: Sequence[str]) -> None:
        self.worker = worker
        self.files = {module: test_files(worker.tree, module) for module in modules}
        (worker.tree / "mutation.toml").write_text(  # nothing else is measured: that would take long
            f"[tool.coverage.run]\ninclude = {json.dumps(list(modules))}\n")
        files = sorted({name for names in self.files.values() for name in names})
        self._record(files, "--cov", "--cov-config=mutation.toml", "--cov-context=test", "--cov-report=")
        data = CoverageData(str(worker.tree / ".coverage"))
        data.read()
        self.lines = {str(Path(name).relative_to(worker.tree)): data.contexts_by_lineno(name)
                      for name in data.measured_files() if Path(name).is_relative_to(worker.tree)}
        found = self._record(files)  # again: coverage makes tests slow, and a few of them fail
        self.failed = set(found["failed"])  # leaving these out can only lower the score
        self.seconds = {name: took for name, took in found["seconds"].items() if name not in self.failed}

    def _record(self, files: list[str], *more: str) -> dict[str, Any]:
        report = self.worker.tree / "report.json"
        report.unlink(missing_ok=True)
        answer = self.worker.run(files, None, _LONGEST, *more, report=report)
        if not report.exists():
            why = f"take longer than {_LONGEST} seconds" if answer["exit"] is None else "do not run"
            raise SystemExit(f"the tests {why} without a mutant:\n{self.worker.log()[-2000:]}")
        found: dict[str, Any] = json.loads(report.read_text())
        return found

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the test functions that could notice a mutant, quickest first."""
        lines = self.lines.get(mutant.path, {})
        own = {context for line in range(mutant.lines[0], mutant.lines[1] + 1) for context in lines.get(line, ())}
        names = self._functions(own)
        if not mutant.inside or "" in own:  # it runs at import: any test of the package may notice
            of_file = self._functions({context for found in lines.values() for context in found})
            names |= of_file | {name for name in self.seconds
                                if name.split("::")[0] in self.files[mutant.path]}
            return sorted(names, key=lambda name: (name not in of_file, self.seconds[name]))
        return sorted(names, key=self.seconds.__getitem__)

    def _functions(self, contexts: set[str]) -> set[str]:
        """Return the test functions of coverage contexts such as "tests/test_x.py::test_y[z]|run"."""
        return {context.split("|")[0].split("[", 1)[0] for context in contexts} & self.seconds.keys()


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    status: str  # "killed", "time-out", "survived" or "not run"
    line: int
    diff: str

    @property
    def killed(self) -> bool:
        """Whether the tests noticed it."""
        return self.status in {"killed", "time-out"}


def attempt(mutant: Mutant, baseline: Baseline, slack: float = SLACK) -> Outcome:
    """Put one mutant into the copy, run its tests, and take it out again."""
    path = baseline.worker.tree / mutant.path
    source = path.read_bytes()
    mutated = mutant.apply(source)
    lines = difflib.unified_diff(source.decode().splitlines(), mutated.decode().splitlines(), lineterm="", n=0)
    diff = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
    select = baseline.tests(mutant)
    status = "not run"
    if select:
        took = [baseline.seconds[name] for name in select]
        files = sorted({name.split("::")[0] for name in select})
        try:
            path.write_bytes(mutated)
            code = baseline.worker.run(files, select, 2 * slack + 4 * sum(took), "-x",
                                       f"--timeout={slack + 4 * max(took):.0f}")["exit"]
        finally:
            path.write_bytes(source)
        status = "time-out" if code is None else "survived" if code in (0, 5) else "killed"  # 5: no test found
    return Outcome(mutant, status, mutant.line(source), diff)


def sample(tree: Path, module: str, count: int | None, seed: int) -> list[Mutant]:
    """Return `count` random mutants of a module, or all, in random order."""
    found = mutants(tree, tree / module)
    return random.Random(seed).sample(found, len(found))[:count]  # a larger sample contains the smaller one


def outcomes(chosen: list[Mutant], baseline: Baseline, deadline: float, slack: float) -> Iterator[Outcome]:
    """Try the mutants until the time is up."""
    for number, mutant in enumerate(chosen, 1):
        if time.monotonic() > deadline:
            print(f"time is up after {number - 1} of {len(chosen)} mutants", flush=True)
            return
        outcome = attempt(mutant, baseline, slack)
        if not outcome.killed:
            print(f"{outcome.status}: {mutant.path}:{outcome.line} ({mutant.kind})\n{outcome.diff}", flush=True)
        yield outcome


def score(found: list[Outcome]) -> float:
    """The share of mutants that were killed; 1 of none."""
    return sum(outcome.killed for outcome in found) / len(found) if found else 1.0


def summary(module: str, found: list[Outcome]) -> None:
    """Print the score of a module."""
    idle = sum(outcome.status == "not run" for outcome in found)
    late = sum(outcome.status == "time-out" for outcome in found)
    print(f"{score(found):7.1%}  {sum(one.killed for one in found):4} of {len(found):4}  {module} "
          f"({late} by a time-out of all; {idle} not run by a test)", flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", help="a file below appliance/; default: the twelve")
    parser.add_argument("--sample", type=int, default=12, help="mutants of each module")
    parser.add_argument("--all", action="store_true", help="every mutant: many hours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each module, at most")
    parser.add_argument("--slack", type=float, default=SLACK, help="seconds that others may take from a test")
    parser.add_argument("--json", type=Path, help="write every outcome here")
    return parser.parse_args()


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {"file": outcome.mutant.path, "line": outcome.line, "kind": outcome.mutant.kind, "status": outcome.status,
            "diff": outcome.diff}


def main() -> int:
    """Measure, print, and say whether every package scored enough."""
    args = arguments()
    modules = args.module or MODULES
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        tree = Path(directory) / "tree"
        copy_tree(tree)
        worker = Worker(tree)
        try:
            baseline = Baseline(worker, modules)
            print(f"{len(baseline.seconds)} test functions, {sum(baseline.seconds.values()):.0f} s; failing without a "
                  f"mutant and left out: {', '.join(sorted(baseline.failed)) or 'none'}", flush=True)
            for module in modules:
                chosen = sample(tree, module, None if args.all else args.sample, args.seed)
                deadline = time.monotonic() + 60 * args.minutes
                found[module] = list(outcomes(chosen, baseline, deadline, args.slack))
                summary(module, found[module])
        finally:
            worker.close()
    if args.json:
        args.json.write_text(json.dumps({module: {"score": score(of), "mutants": [_as_json(one) for one in of]}
                                         for module, of in found.items()}, indent=1) + "\n")
    together = score([outcome for of in found.values() for outcome in of])
    print(f"all modules together: {together:.1%}; required: {REQUIRED:.0%}")
    return 1 if together < REQUIRED else 2 if baseline.failed else 0


if __name__ == "__main__":
    sys.exit(main())
