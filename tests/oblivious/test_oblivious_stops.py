"""Stop strings by sweeps: what passes is what the plain filter lets pass, and no step or page depends on the text."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.generation import Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.kernels.layouts.blind import StopPass
from appliance.oblivious.stops import LENGTH, MOST_NBYTES, StopTable, SweptStops
from appliance.text.stops import MAX_LENGTH, MAX_STOPS, StopFilter
from tests.support.extent import examples
from tests.support.oblivious import both, kernels
from tests.support.page_traces import PageTracer
from tests.support.step_traces import StepTracer

LISTS = (("ab",), ("a", "aa", "aab"), ("ba", "ab", "ab"), ("é", "aé", "ba\U0001f600"), ("b" * 70, "a" * 130 + "b"),
         ("a" * MAX_LENGTH,), tuple("ab" * count for count in range(1, MAX_STOPS + 1)),
         ("\U0001f600" * MAX_LENGTH, "bb"))


@pytest.mark.parametrize("stops", LISTS, ids=range(len(LISTS)))
def test_what_passes(stops: tuple[str, ...]) -> None:
    """Piece by piece, for drawn texts that begin stop strings again and again."""
    rng = random.Random(len(stops))
    for number in range(examples(60, 2000)):
        plain, swept = StopFilter(stops), SweptStops(stops, kernels())
        text = "".join(rng.choice(("a", "b", "ab", "é", "\U0001f600", stops[0][:-1], stops[-1][1:]))
                       for _ in range(rng.randint(0, 30)))
        size = rng.choice((1, 2, 5, 400)) if number else len(text) + 1
        for at in range(0, len(text), size):
            piece = text[at:at + size]
            assert plain.push(piece) == swept.push(piece)
            assert (plain.stopped, plain.found) == (swept.stopped, swept.found)
        assert plain.flush() == swept.flush()


@pytest.mark.parametrize("total", [1, 64, 65, 129, 640, 3649, 3660, 5185, 16_384])
def test_a_call_reads_nothing_beside_its_memory(total: int) -> None:
    """Whole words of 64 places, also where the stop strings end within one; each part begins after the one before."""
    table = StopTable([b"x" * total])
    call = StopPass(table.address)
    words = -(-total // 64)
    parts = [(call.TEXT, LENGTH), (call.STATE, 8 * words), (call.STOPS, 64 * words), (call.STARTS, 8 * words),
             (call.ENDS, 8 * words), (call.DEPTHS, 4 * 64 * words)]
    assert words == call.WORDS
    assert all(begins + nbytes <= after for (begins, nbytes), (after, _) in itertools.pairwise(parts))
    assert call.DEPTHS + parts[-1][1] <= table.address + table.nbytes <= table.address + MOST_NBYTES


def test_an_answer_that_waits_holds_nothing() -> None:
    """The memory is taken with the first text, and the plan counts it."""
    swept = SweptStops(("\U0001f600" * MAX_LENGTH,) * MAX_STOPS, kernels())
    assert "" == swept.flush()
    assert "table" not in swept.__dict__
    swept.push("a")
    assert swept.table is not None
    assert swept.table.nbytes == MOST_NBYTES


def test_no_stop_strings() -> None:
    """Then everything passes."""
    swept = SweptStops((), kernels())
    assert "abc" == swept.push("abc")
    assert "" == swept.flush()


def _pieces(rng: random.Random, count: int) -> list[str]:
    """Texts of any length that a piece may have."""
    return ["".join(rng.choice("abcde\u00e9 ") for _ in range(rng.randrange(LENGTH // 2))) for _ in range(count)]


def _table(swept: SweptStops) -> tuple[int, int]:
    assert swept.table is not None
    return swept.table.address, swept.table.nbytes


def test_one_trace_of_pages(tmp_path: Path) -> None:
    """Whether a text begins a stop string, has it, or has nothing of it."""
    stops, traces = ("abc", "de" * 100, "\u00e9" * 200), set()
    for text in ("", "a", "abc", "xyz" * 50, "de" * 60, "\u00e9" * 90, "ab"):
        swept = SweptStops(stops, kernels())
        tracer = PageTracer([_table(swept)], tmp_path, 1)
        with tracer.tracing():
            swept.push(text)
        traces.add((np.frombuffer(tracer.pages, np.uint64) - np.uint64(_table(swept)[0])).tobytes())
    assert 1 == len(traces)


@pytest.mark.slow
def test_one_trace_of_steps(tmp_path: Path) -> None:
    """The same instructions for texts of any kind, and the same lines of memory."""
    stops, traces, rng = ("aaaaaaaaaaaa" * 6, "abc", "bcd", "e\u00e9"), set(), random.Random(1)
    tracer, find = StepTracer(kernels().address("find_stops"), tmp_path), kernels().function("find_stops")
    table = StopTable([stop.encode() for stop in stops])
    for text in ("abc", *_pieces(rng, 2)):
        table.wipe()
        table.write(text.encode())
        find(table.address)
        with tracer.tracing():
            find(table.address)
        traces.add(tracer.trace)
    assert 1 == len(traces)


def test_nothing_is_left() -> None:
    """After an answer, its text is overwritten."""
    swept = SweptStops(("Rumpel",), kernels())
    swept.push("the name is Rumpelstiltskin")
    assert swept.stopped
    assert swept.table is not None
    assert b"name" not in bytes(swept.table._memory.view)


def test_an_answer_uses_them() -> None:
    """Where choices are by sweeps, so are stop strings."""
    request = GenerationRequest([1], 4, Sampling(seed=1), stop=("x",))
    for sweeps in (False, True):
        words = both()[0]
        scratch = Scratch(words.vocab_size, kernels(), sweeps=sweeps)
        assert isinstance(Generation(request, words, words.vocab_size, 99, scratch)._stops, SweptStops) == sweeps
