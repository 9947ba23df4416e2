"""Cells judged: tables go to the classifiers' own environment, and answers come back as verdicts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.leakage.bounds import Verdict, judged
from benchmarks.leakage.classifiers import KINDS
from benchmarks.leakage.features import Table

LOCK = Path(__file__).with_name("requirements.lock")
ROOT = Path(__file__).parents[2]
LEAST = 40  # trials, below which nothing can be learned
Cell = tuple[str, str]  # a pair and an observer


def python(work: Path) -> Path:
    """Return the interpreter of the classifiers' environment, which is made where it is missing.
    SystemExit in words if it cannot be made."""
    place = work / "leakage-environment"
    program, made = place / "bin" / "python", place / "lock"
    if made.is_file() and made.read_bytes() == LOCK.read_bytes():
        return program
    print(f"making {place} by {LOCK.name}", file=sys.stderr, flush=True)
    venv.create(place, with_pip=True, clear=True)
    done = subprocess.run([program, "-m", "pip", "--quiet", "--disable-pip-version-check", "install",
                           "--only-binary", ":all:", "--require-hashes", "-r", LOCK], check=False)
    if done.returncode:
        raise SystemExit(f"pip could not install what {LOCK} lists; it needs a package index")
    made.write_bytes(LOCK.read_bytes())
    return program


def halves(count: int) -> np.ndarray:
    """Return one half of the trials, drawn at random."""
    return np.random.default_rng(1).permutation(count) % 2 == 0


def arrays(tables: Mapping[Cell, Table]) -> dict[str, np.ndarray]:
    """Return tables as arrays by name, such as `length/socket/rows`."""
    return {f"{pair}/{observer}/{what}": value for (pair, observer), each in tables.items() for what, value in (
        ("rows", each.rows), ("sequences", each.sequences), ("secrets", each.secrets),
        ("learning", halves(len(each.secrets))))}


def judge(tables: Mapping[Cell, Table], work: Path,
          said: Callable[[str], None] = lambda _: None) -> dict[Cell, dict[str, Verdict]]:
    """Return what each classifier can tell of each cell. `said` is called with each cell's name."""
    program = python(work)
    named = {cell: table for cell, table in tables.items() if len(table.secrets) >= LEAST}
    with tempfile.TemporaryDirectory(prefix="leakage-") as folder:
        there, back = Path(folder) / "tables.npz", Path(folder) / "answers.npz"
        np.savez(there, **arrays(named))
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # tables are too small for more
        with subprocess.Popen([program, "-m", "benchmarks.leakage.classifiers", there, back], cwd=ROOT, env=alone,
                              stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said(json.loads(line)["cell"])
        if process.returncode:
            raise SystemExit("the classifiers failed; their messages are above")
        answers = np.load(back)
        return {cell: {kind: judged(answers[f"{'/'.join(cell)}/{kind}"], each.secrets) for kind in KINDS}
                for cell, each in named.items()}
