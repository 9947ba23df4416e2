"""What the host sees of a streamed mixture that answers many prompts of one length: system calls that read its
file, and pages of memory that are touched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.kernels.layouts.step import Step
from appliance.models.sources.source import Access
from appliance.secure.locked import address
from tests.support.disk_traces import DiskTracer
from tests.support.extent import examples
from tests.support.page_traces import PageTracer
from tests.support.require import tools
from tests.support.traced_mixture import EXPERTS, MARK, PROMPT, answer, ciphertext, prompts, running, working

COUNT = examples(30, 100)
_READS = ("read,pread64,readv,preadv,preadv2,mmap,sendfile,splice,copy_file_range,fadvise64,readahead,io_uring_setup,"
          "write")


def _different(traces: list[object]) -> int:
    assert len(traces) == COUNT
    assert all(traces)
    return len(set(traces))


@pytest.mark.parametrize("kind", ["sealed", "compiled sealed", "compiled plain"])
@pytest.mark.parametrize(("access", "kept"), [("hidden", False), ("hidden", True), ("oblivious", False),
                                              ("leaks", False)])
def test_the_disk_sees_one_trace(kind: str, access: Access, kept: bool, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of the file and their order are the same for each prompt, or others for each under "leaks", where so the
    tracer sees."""
    tracer, traces = DiskTracer(monkeypatch), list[object]()
    with running(kind, tmp_path, access, kept=EXPERTS if kept else ()) as (engine, _):
        for tokens in prompts(COUNT):
            tracer.reads.clear()
            answer(engine, tokens)
            traces.append(tuple(tracer.reads))
    assert (COUNT if access == "leaks" else 1) == _different(traces)


@pytest.mark.slow
@pytest.mark.parametrize("access", ["hidden", "oblivious", "leaks"])
def test_the_kernel_sees_one_trace(access: Access, tmp_path: Path) -> None:
    """As strace shows the whole process: all system calls by which the file could be read, or brought to memory."""
    tools("strace", package="strace")
    out = tmp_path / "calls"
    subprocess.run(["strace", "-f", "-y", "-qq", "-e", f"trace={_READS}", "-e", "signal=none", "-o", out,
                    sys.executable, "-m", "tests.support.traced_mixture", tmp_path, access, str(COUNT)], check=True,
                   cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    marked = re.split(rf'.* write\(2<[^>]*>, "{MARK}\\n".*\n', out.read_text())
    traces = [tuple(re.sub(r"0x[0-9a-f]+", "", line.partition(" ")[2]) for line in part.splitlines()
                    if "model.sealed" in line) for part in marked[1:-1]]
    assert (COUNT if access == "leaks" else 1) == _different([*traces])


@pytest.mark.parametrize("kind", ["sealed", "compiled sealed"])
@pytest.mark.parametrize("access", ["hidden", "oblivious", "leaks"])
def test_the_memory_of_ciphertext_sees_one_trace(kind: str, access: Access, tmp_path: Path) -> None:
    """Pages of the records of experts and of the embedding are touched in one order for all prompts under "oblivious".
    They are others for each under "hidden", which promises nothing of memory, and where so the tracer sees."""
    traces = []
    with running(kind, tmp_path, access, kept=EXPERTS) as (engine, source):
        tracer = PageTracer(ciphertext(source), tmp_path, window=4)
        for tokens in prompts(COUNT):
            with tracer.tracing():
                answer(engine, tokens)
            traces.append(tracer.pages)
    assert (1 if access == "oblivious" else COUNT) == _different([*traces])


@pytest.mark.parametrize("count", [8, pytest.param(COUNT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("access", ["hidden", "oblivious", "leaks"])
def test_a_whole_pass_sees_one_trace(access: Access, count: int, tmp_path: Path) -> None:
    """All pages that a pass touches, and their order, are the same for each prompt under "oblivious", or others for
    each where so the tracer sees. Experts go through a prompt's rows in parts."""
    traces, sets = [], []
    with running("compiled sealed", tmp_path, access, kept=EXPERTS) as (engine, source):
        engine._forward._step.put(Step, {"PAIRS": 5 * PROMPT})
        tracer = PageTracer(working(engine, source), tmp_path, window=8)
        for tokens in prompts(count):
            with tracer.tracing():
                answer(engine, tokens)
            traces.append(tracer.pages)
            sets.append(frozenset(np.frombuffer(tracer.pages, np.uint64).tolist()))
    assert (1 if access == "oblivious" else count) == len(set(traces))
    assert (1 if access == "oblivious" else count) == len(set(sets))


def test_pages_of_resident_experts_tell(tmp_path: Path) -> None:
    """Of experts that are resident, only the chosen ones are touched under "hidden"."""
    traces = []
    with running("compiled sealed", tmp_path, "hidden", resident=EXPERTS) as (engine, source):
        arena = source._decrypted._arena
        assert arena is not None
        tracer = PageTracer([(address(arena), len(arena))], tmp_path, window=4)
        for tokens in prompts(COUNT):
            with tracer.tracing():
                answer(engine, tokens)
            traces.append(tracer.pages)
    assert _different([*traces]) == COUNT
