"""Mutation testing of what decides whom to trust: policy, models and attestation.

    python -m tests.mutation [--package policy ...] [--sample 100 | --all] [--seed 1] [--only GLOB] [--json FILE]

Works on a copy of the repository. One run of the tests of the three packages (see `test_files`), under
coverage, says which test runs which line. Then a seeded random sample of the mutants of each package (see
`tests.support.mutants`) is tried, one at a time, against the tests that run the mutated line, quickest first;
for a line that runs at import, against those that run its file and then all of its package. A failing test, a
crash or a time-out kills a mutant; one on a line that no test runs has survived. Prints the survivors and a
score for each file and package. Exits 1 when a package scores less than 80%, 2 when the tests fail without a
mutant.
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
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests.support.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
PACKAGES = ("policy", "models", "attestation")
REQUIRED = 0.80
LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "htmlcov", "*.log")
# Tests import what they test; those that start engines or servers as well are slow and judge other things.
_IMPORT = r"^(?:from|import) appliance(?:\.| import )({})\b"
_SLOW = re.compile(r"appliance\.(?:engine|service|imaging)\b|appliance import engine|tests\.support import .*server"
                   r"|tests\.support\.(?:server|demo_model|engines import kernels)")
# Of the slow ones, those that alone test a module of the package; they take prebuilt kernels where there are any.
_ALSO = {"attestation": ("test_approvals.py", "test_tpm_activation.py"),
         "models": ("test_sealed_roundtrip.py", "test_streamed.py")}
SLACK = 10  # seconds that a test may take beside four times its own, and all tests of a mutant together


def copy_tree(target: Path) -> None:
    """Copy the repository; what was built is linked. Compiled files are checked by hash: no stale one is ever run."""
    shutil.copytree(ROOT, target, ignore=LEFT_BEHIND)
    if (ROOT / "build").exists():
        (target / "build").symlink_to(ROOT / "build")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "appliance"],
                   cwd=target, check=True)


def test_files(tree: Path, package: str) -> list[str]:
    """Return the files that test a package: named after it, or importing it and nothing slow."""
    found = []
    imports = re.compile(_IMPORT.format(package), re.MULTILINE)
    for path in sorted((tree / "tests").glob("test_*.py")):
        text = path.read_text()
        if path.name.startswith(f"test_{package}_") or path.name in _ALSO.get(package, ()) or (
                imports.search(text) and not _SLOW.search(text)):
            found.append(str(path.relative_to(tree)))
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

    def __init__(self, worker: Worker, packages: Sequence[str]) -> None:
        self.worker = worker
        self.files = {package: test_files(worker.tree, package) for package in packages}
        files = sorted({name for names in self.files.values() for name in names})
        self._record(files, "--cov=appliance", "--cov-context=test", "--cov-report=")
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
        self.worker.run(files, None, 1800, *more, report=report)
        if not report.exists():
            raise SystemExit(f"the tests do not run without a mutant:\n{self.worker.log()[-2000:]}")
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
                                if name.split("::")[0] in self.files[_package(mutant)]}
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


def _package(mutant: Mutant) -> str:
    return mutant.path.split("/")[1]


def attempt(mutant: Mutant, baseline: Baseline) -> Outcome:
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
            code = baseline.worker.run(files, select, 2 * SLACK + 4 * sum(took), "-x",
                                       f"--timeout={SLACK + 4 * max(took):.0f}")["exit"]
        finally:
            path.write_bytes(source)
        status = "time-out" if code is None else "survived" if code in (0, 5) else "killed"  # 5: no test found
    return Outcome(mutant, status, mutant.line(source), diff)


def sample(tree: Path, package: str, only: list[str], count: int | None, seed: int) -> list[Mutant]:
    """Return `count` random mutants of a package, or all, in random order: what is tried in time is a sample."""
    paths = [path for path in sorted((tree / "appliance" / package).rglob("*.py"))
             if any(fnmatch(str(path.relative_to(tree)), pattern) for pattern in only)]
    found = [mutant for path in paths for mutant in mutants(tree, path)]
    return random.Random(seed).sample(found, len(found))[:count]  # a larger sample contains the smaller one


def outcomes(chosen: list[Mutant], baseline: Baseline, deadline: float) -> Iterator[Outcome]:
    """Try the mutants until the time is up."""
    for number, mutant in enumerate(chosen, 1):
        if time.monotonic() > deadline:
            print(f"time is up after {number - 1} of {len(chosen)} mutants", flush=True)
            return
        outcome = attempt(mutant, baseline)
        if not outcome.killed:
            print(f"{outcome.status}: {mutant.path}:{outcome.line} ({mutant.kind})\n{outcome.diff}", flush=True)
        yield outcome


def score(found: list[Outcome]) -> float:
    """The share of mutants that were killed; 1 of none."""
    return sum(outcome.killed for outcome in found) / len(found) if found else 1.0


def summary(package: str, found: list[Outcome]) -> None:
    """Print the score of each file and of the package."""
    for path in sorted({outcome.mutant.path for outcome in found}):
        of_file = [outcome for outcome in found if outcome.mutant.path == path]
        print(f"  {score(of_file):7.1%}  {sum(one.killed for one in of_file):4} of {len(of_file):4}  {path}")
    idle = sum(outcome.status == "not run" for outcome in found)
    late = sum(outcome.status == "time-out" for outcome in found)
    print(f"{package}: {score(found):.1%} of {len(found)} mutants killed "
          f"({late} by a time-out of all; {idle} not run by a test)", flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", choices=PACKAGES, help="default: all three")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package")
    parser.add_argument("--all", action="store_true", help="every mutant: many hours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="files to mutate, such as '*/policy/rules.py'; default: all")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each package, at most")
    parser.add_argument("--json", type=Path, help="write every outcome here")
    return parser.parse_args()


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {"file": outcome.mutant.path, "line": outcome.line, "kind": outcome.mutant.kind, "status": outcome.status,
            "diff": outcome.diff}


def main() -> int:
    """Measure, print, and say whether every package scored enough."""
    args = arguments()
    packages = args.package or PACKAGES
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        tree = Path(directory) / "tree"
        copy_tree(tree)
        worker = Worker(tree)
        try:
            baseline = Baseline(worker, packages)
            print(f"{len(baseline.seconds)} test functions, {sum(baseline.seconds.values()):.0f} s; failing without a "
                  f"mutant and left out: {', '.join(sorted(baseline.failed)) or 'none'}", flush=True)
            for package in packages:
                chosen = sample(tree, package, args.only or ["*"], None if args.all else args.sample, args.seed)
                deadline = time.monotonic() + 60 * args.minutes
                found[package] = list(outcomes(chosen, baseline, deadline))
                summary(package, found[package])
        finally:
            worker.close()
    if args.json:
        args.json.write_text(json.dumps({package: {"score": score(of), "mutants": [_as_json(one) for one in of]}
                                         for package, of in found.items()}, indent=1) + "\n")
    low = [package for package, of in found.items() if score(of) < REQUIRED]
    print(f"below {REQUIRED:.0%}: {', '.join(low)}" if low else f"every package reaches {REQUIRED:.0%}")
    return 1 if low else 2 if baseline.failed else 0


if __name__ == "__main__":
    sys.exit(main())
