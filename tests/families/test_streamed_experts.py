"""Mixtures that are streamed: the bits of the resident model, and reads that no text changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.families.tensors import roles_of
from appliance.kernels.layouts.step import Step
from appliance.models.sources.source import Access
from appliance.models.sources.streamed import StreamedSource
from tests.support import family_models
from tests.support.disk_traces import DiskTracer
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of
from tests.support.streams import stored

KINDS = ("sealed", "plain", "compiled sealed", "compiled plain")
NAMES = ("qwen3moe", "qwen2moe", "glm4moe", "llama.experts", "gpt-oss", "gemma4.experts")
PROMPT = family_models.prompts(4)[3]
TEXTS = [tokens[:4] for tokens in family_models.prompts(6)[1:]]
_EXPERTS = [f"blk.{block}.ffn_{part}_exps.weight"
            for block, part in itertools.product(range(5), ("gate", "up", "down"))]


@contextmanager
def _running(kind: str, folder: Path, name: str = "qwen3moe", threads: int = 2, tile_size: int = 4096,
             **how: Any) -> Iterator[tuple[Engine, StreamedSource]]:
    _, make = stored(kind, folder, family_models.model(name), tile_size)
    source = make(roles=roles_of, **how)
    with closing(source), Engine.open(source, EngineOptions(threads=threads, slots=2), kernels=kernels()) as engine:
        yield engine, source


@cache
def _expected(name: str) -> np.ndarray:
    with opened(family_models.model(name)) as source, Engine.open(
            source, EngineOptions(threads=1, slots=2), kernels=kernels()) as engine:
        return logits_of(engine, PROMPT)


_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3moe", {"access": "leaks"}), ("qwen3moe", {}), ("qwen3moe", {"access": "oblivious"}),
    ("qwen3moe", {"kept": _EXPERTS}), ("qwen3moe", {"kept": _EXPERTS[:5], "access": "oblivious"}),
    ("qwen3moe", {"drop": True}), ("qwen3moe", {"drop": True, "access": "leaks"}),
    ("qwen3moe", {"resident": _EXPERTS[3:7], "drop": True}), ("qwen3moe", {"tile_size": 65536}),
    ("qwen3moe", {"resident": _EXPERTS, "access": "oblivious"}),
    *((name, {"access": access}) for name in NAMES[1:] for access in ("hidden", "oblivious"))]


def _cases() -> Iterator[Any]:
    """Each way with two kinds of files by turns, so that each kind is read with every access; all others in the soak.
    "leaks" by itself has all kinds."""
    for (place, (name, how)), (number, kind) in itertools.product(enumerate(_WAYS), enumerate(KINDS)):
        usual = place == 0 or (number - place) % len(KINDS) < 2
        yield pytest.param(kind, name, how, marks=() if usual else pytest.mark.soak, id=f"{name}-how{place}-{kind}")


@pytest.mark.parametrize(("kind", "name", "how"), list(_cases()))
def test_the_same_bits(kind: str, name: str, how: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is kept, read or decrypted, row by row and in pieces, the logits are those of the resident model."""
    expected = _expected(name)
    with _running(kind, tmp_path, name, **how) as (engine, _):
        assert np.array_equal(expected, logits_of(engine, PROMPT))
    with _running(kind, tmp_path, name, threads=1, **how) as (engine, _):
        assert np.array_equal(expected[-1:], logits_of(engine, PROMPT, last=1))


@pytest.mark.parametrize("pairs", [20, 41, 100])
@pytest.mark.parametrize("name", [*NAMES, "bailingmoe2"])
def test_rows_through_some_experts_at_a_time(name: str, pairs: int, tmp_path: Path) -> None:
    """Where there is room for few results, the sums are those of experts that were chosen all the same."""
    with _running("compiled sealed", tmp_path, name, access="oblivious") as (engine, _):
        engine._forward._step.put(Step, {"PAIRS": pairs})
        assert np.array_equal(_expected(name), logits_of(engine, PROMPT, chunk=20))


def _passes(engine: Engine, source: StreamedSource, tokens: list[int]) -> list[tuple[int, int]]:
    """Bytes that were decrypted and bytes that were read for each of some tokens, one a pass."""
    found, forward = [], engine._forward
    forward.boundary.forget(0)
    for position, token in enumerate(tokens):
        before = source.workers.opened_nbytes, source.workers.read_nbytes
        forward.run([token], [position], [0], [0])
        found.append((source.workers.opened_nbytes - before[0], source.workers.read_nbytes - before[1]))
    return found


@pytest.mark.parametrize("kind", ["sealed", "compiled sealed"])
@pytest.mark.parametrize(("access", "kept"), [
    ("hidden", False), ("hidden", True), ("leaks", False), ("leaks", True), ("oblivious", True)])
def test_what_a_token_decrypts_and_reads(kind: str, access: Access, kept: bool, tmp_path: Path) -> None:
    """Of 12 experts 3 are decrypted, unless nothing may show; all are read from a disk that may not see which, and
    none from a disk where they are in memory."""
    how = {"access": access, "kept": _EXPERTS if kept else ()}
    with _running(kind, tmp_path, threads=1, **how) as (engine, source):
        segments = [segment for segment in source.reader.tiles.tiling.segments if segment.info is not None
                    and segment.info.name != "token_embd.weight" and source.roles[segment.info.name] != "vector"]
        runs = [segment for segment in segments if segment.runs > 1]
        dense = sum(segment.nbytes for segment in segments if segment.runs == 1)
        experts, records = sum(run.nbytes for run in runs), sum(run.records_nbytes for run in runs)
        others = sum(segment.records_nbytes for segment in segments if segment.runs == 1)
        embedding = source.reader.segment("token_embd.weight")
        for token, (opened_nbytes, read_nbytes) in zip(PROMPT, _passes(engine, source, PROMPT[:6]), strict=False):
            row = source.reader.tiles.tiling.tile(embedding.first_tile + token // embedding.tile_rows)
            looked_up = (row.nbytes, row.record_nbytes) if access == "leaks" else (0, 0)
            assert opened_nbytes == looked_up[0] + dense + (experts if access == "oblivious" else experts // 4)
            assert read_nbytes == looked_up[1] + others + (
                0 if kept else records // 4 if access == "leaks" else records)


@pytest.mark.parametrize("kind", ["compiled sealed", "compiled plain", "sealed", "plain"])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("access", ["hidden", "oblivious", "leaks"])
def test_the_disk_sees_no_text(kind: str, kept: bool, access: Access, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of the file, in the order in which one thread asks for them, are the same for texts of one length; under
    "leaks" each text has others, so that the tracer sees."""
    tracer, traces = DiskTracer(monkeypatch), []
    with _running(kind, tmp_path, threads=1, access=access, kept=_EXPERTS if kept else ()) as (engine, source):
        for tokens in TEXTS:
            tracer.reads.clear()
            _passes(engine, source, tokens)
            traces.append(tuple(tracer.reads))
    assert all(traces)
    assert (len(traces) if access == "leaks" else 1) == len(set(traces))


def test_what_is_read_ahead_is_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no page cache holds the file, all of it is read ahead, past the cache, whatever the text: nothing is asked
    for again by whoever wants a tile."""
    tracer = DiskTracer(monkeypatch)
    with _running("sealed", tmp_path, threads=1, drop=True) as (engine, source):
        assert source.reader.ahead is not None
        spans = {(span.offset, span.nbytes) for span in source.reader.ahead._spans}
        for tokens in TEXTS:
            tracer.reads.clear()
            _passes(engine, source, tokens)
            assert set(tracer.reads) <= spans


@pytest.mark.parametrize("access", ["hidden", "oblivious"])
def test_the_memory_sees_no_text(access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ciphertext in memory is decrypted in the same order whatever the text, embeddings too, under "oblivious"; under
    "hidden" each text has an order of its own, so that the tracer sees."""
    traces, seen = [], list[tuple[str, int]]()
    with _running("sealed", tmp_path, threads=1, access=access, kept=_EXPERTS) as (engine, source):
        assert source._embedding is not None
        fill, read = source.reader.fill, source._embedding.read
        monkeypatch.setattr(source.reader, "fill", lambda worker, number: (seen.append(("tile", number)),
                                                                           fill(worker, number))[1])
        monkeypatch.setattr(source._embedding, "read", lambda piece, buffer: (seen.append(("piece", piece)),
                                                                              read(piece, buffer))[1])
        for tokens in TEXTS:
            seen.clear()
            _passes(engine, source, tokens)
            traces.append(tuple(seen))
        assert {"tile", "piece"} == {kind for kind, _ in traces[0]}
    assert (1 if access == "oblivious" else len(traces)) == len(set(traces))
