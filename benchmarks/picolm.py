"""`python -m benchmarks.picolm --picolm FOLDER`: PicoLM and the appliance, one after the other, in
the same control group limit, with the same file and threads.

FOLDER is a checkout of https://github.com/RightNow-AI/picolm at the pinned commit, with the program
built there as its README says (`picolm/picolm`). Without it the row is skipped. PicoLM maps the
file: what it needs of that lies in the page cache, which its group is charged for. So memory is
given in three ways: anonymous, of the process (mapped pages included), and charged to the group at
its peak.

Before each run the file is dropped from the page cache (cold), and its reader is charged. Bytes
that do not fit within the limit come from the disk in every pass, for both; they are counted. With
`--warm` it is brought into the page cache first, charged to nobody, so that neither waits for the
disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, libraries, memory, report
from benchmarks.cgroups import Group, needed

COMMIT = "cf3f2dfca389e4f19a10dd36ce110c41ea12c899"
_PROMPT, _CONTEXT = 16, 256
_SPEED = re.compile(r"Generation: (\d+) tokens in ([0-9.]+)s")


def missing(folder: Path | None) -> str | None:
    """Why PicoLM cannot be measured; None when it can."""
    if folder is None:
        return "no --picolm FOLDER was given"
    if shutil.which("git") is None:
        return "git is not installed"
    found = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if found.stdout.strip() != COMMIT:
        return f"{folder} is at commit {found.stdout.strip() or 'none'}; needed: {COMMIT}"
    if not (folder / "picolm" / "picolm").exists():
        return f"{folder}/picolm/picolm is not there: build it as its README says"
    return None


def _prepare(model: Path, *, warm: bool) -> None:
    """Nothing of the file in the page cache, or all of it, charged to the group of this process."""
    memory.forget(model)
    if warm:
        memory.bring(model)


def _from_disk(pid: int) -> int:
    """Bytes that a process, still there, had the disk bring, by reading or by touching a mapping.
    """
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["read_bytes"])


def _enter(group: Group, threads: int) -> None:
    group.enter()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def theirs(folder: Path, model: Path, threads: int, tokens: int, limit: int | None, *, warm: bool) -> dict[str, Any]:
    """One run of PicoLM."""
    _prepare(model, warm=warm)
    group = Group("picolm", limit)
    peaks = {"anonymous_peak": 0, "process_peak": 0, "from_disk": 0}
    command = [str(folder / "picolm" / "picolm"), str(model), "-p", "a" * (_PROMPT - 4), "-n", str(tokens), "-t", "1",
               "-j", str(threads), "-c", str(_CONTEXT)]
    try:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 errors="replace", preexec_fn=lambda: _enter(group, threads))
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(child.stderr.read() if child.stderr else ""))
        reader.start()
        while child.poll() is None:
            with contextlib.suppress(OSError, StopIteration):
                peaks["from_disk"] = _from_disk(child.pid)
                peaks["anonymous_peak"] = max(peaks["anonymous_peak"], group.stat()["anonymous"])
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                peaks["process_peak"] = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
            time.sleep(0.05)
        reader.join()
        found = _SPEED.search("".join(said))
        if found is None:
            return {"error": "".join(said)[-500:], "killed": group.killed()}
        return {"tokens_per_second": int(found[1]) / float(found[2]), "tokens": int(found[1]), **peaks,
                "group_peak": group.peak()}
    finally:
        group.close()


def ours(case: memory.Case, threads: int, limit: int | None, *, warm: bool) -> dict[str, Any]:
    """One run of the service with the same file."""
    with tempfile.TemporaryDirectory() as folder:
        case.write(Path(folder))  # which reads the file, once
    _prepare(case.file, warm=warm)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:threads])  # the service takes it over
    try:
        with tempfile.TemporaryDirectory() as folder:
            served = memory.Served(case, limit, Path(folder))
            try:
                served.ready()
                ids = [1, *np.random.default_rng(2).integers(300, 3000, _PROMPT - 1).tolist()]
                answer = memory.ask(served.client(), ids, case.answer, temperature=1.0)
                return {"tokens_per_second": answer["tokens_per_second"], "tokens": answer["answer_tokens"],
                        **served.memory(), "from_disk": _from_disk(served.pid)}
            except RuntimeError as error:
                return {"error": str(error)[-500:]}
            finally:
                served.close()
    finally:
        os.sched_setaffinity(0, before)


def main() -> int:
    """Measure; 0 too when PicoLM is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picolm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="1.1b", help=f"{commandline.NAMES}, or a GGUF file")
    parser.add_argument("--picolm", type=Path, metavar="FOLDER", help="its checkout, built")
    parser.add_argument("--limits", type=commandline.LIMITS, default="256,1024,0", metavar="MIB,MIB",
                        help="0: none (default: %(default)s)")
    parser.add_argument("--threads", type=commandline.THREADS, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=numbers.whole(2, _CONTEXT - _PROMPT), default=24)
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=3)
    parser.add_argument("--warm", action="store_true", help="with the file in the page cache, charged to nobody")
    libraries.option(parser)
    commandline.options(parser, "picolm.json")
    args = commandline.parse(parser)
    why = missing(args.picolm)
    if why is not None:
        print(f"PicoLM: skipped: {why}")
        return 0
    needed()
    model = commandline.model(args.model, args.work)
    case = memory.Case(model, None, '"auto"', "f16", _PROMPT, args.tokens,
                       python=libraries.python(args))
    document: dict[str, Any] = {"machine": report.machine(), "commit": COMMIT, "model": model.name,
                                "threads": args.threads, "load_average": os.getloadavg()[0], "rows": []}
    for limit in (each << 20 or None for each in args.limits):
        rounds = [(ours(case, args.threads, limit, warm=args.warm),
                   theirs(args.picolm, model, args.threads, args.tokens, limit, warm=args.warm))
                  for _ in range(args.rounds)]
        row: dict[str, Any] = {"limit": limit, "warm": args.warm, "rounds": rounds}
        if not any("error" in each for pair in rounds for each in pair):
            row["ratio"] = statistics.median(
                mine["tokens_per_second"] / other["tokens_per_second"] for mine, other in rounds)
        document["rows"].append(row)
        print(line(row), flush=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def line(row: dict[str, Any]) -> str:
    """A row for people: of the last round."""
    limit = "no limit" if row["limit"] is None else f"{row['limit'] >> 20} MiB"
    parts = []
    for name, found in zip(("appliance", "PicoLM"), row["rounds"][-1], strict=True):
        parts.append(f"{name}: {found['error'].strip().splitlines()[-1]}" if "error" in found else
                     f"{name}: {found['tokens_per_second']:.2f} tokens/s, process {found['process_peak'] >> 20} MiB, "
                     f"anonymous {found['anonymous_peak'] >> 20}, charged {found['group_peak'] >> 20}, "
                     f"from disk {found['from_disk'] >> 20}")
    ratio = f"; {row['ratio']:.1f} times its speed" if "ratio" in row else ""
    return f"{limit}: {'; '.join(parts)}{ratio}"


if __name__ == "__main__":
    commandline.run(main)
