"""Streams as parcels, by a clock of the test: how many leave, of which size, and when."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator

import pytest

from appliance.service.admission.privacy import Pacer, Timing
from appliance.service.delivery import parcels
from appliance.service.delivery.parcels import Parcels

SIZE, GRID, TOTAL = 256, 0.1, 0.5
PER_TOTAL = 5


class Clock:
    """Seconds that pass where the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Script:
    """A source: at each multiple the events that came, then the last ones, and those that are made at the end."""

    def __init__(self, events: list[bytes], closing: bytes, *, made: bytes = b"", known: bool = True,
                 fails: bool = False) -> None:
        self._events, self._closing, self._made, self._known, self._fails = [*events], closing, made, known, fails
        self.error: Exception | None = None
        self.noted: list[int] = []  # how many parcels had left when the end was noted
        self.left = 0

    @property
    def over(self) -> bool:
        """Whether all have been taken."""
        return not self._events

    def take(self) -> bytes:
        """The events of this multiple."""
        return self._events.pop(0) if self._events else b""

    def closing(self) -> bytes | None:
        """The last events."""
        return self._closing if self._known else None

    async def end(self) -> bytes:
        """Note the end, which may not be possible."""
        self.noted.append(self.left)
        self._known = True
        if self._fails:
            self.error, self._closing = ValueError(), b"data: failed\n\n"
        return self._made


def _leave(source: Script, *, late: float = 0.0, slow: float = 0.0) -> list[tuple[float, bytes]]:
    """Each parcel with its time since the request's arrival. `late`: when the answer's head is ready. `slow`: what each
    takes besides."""
    clock = Clock()
    arrived = clock.now
    clock.now += late

    async def run() -> list[tuple[float, bytes]]:
        found, ends = [], list[bool]()
        pacer = Pacer(Timing(GRID, TOTAL, cadence=0.01), arrived, clock=clock, sleep=clock.sleep)
        made = Parcels(source, pacer, SIZE, lambda data: data)
        async for parcel in made.leave():
            ends.append(made.over)
            await pacer.leave()
            found.append((round(clock.now - arrived, 6), parcel))
            source.left += 1
            clock.now += slow
        assert [False] * (len(found) - 1) + [True] == ends  # the end of the stream leaves with the last
        return found

    return asyncio.run(run())


def _event(nbytes: int, letter: str = "x") -> bytes:
    return b"data: " + letter.encode() * nbytes + b"\n\n"


def _read(found: list[tuple[float, bytes]]) -> list[str]:
    """The events as a reader of the stream has them (WHATWG, server-sent events): comments and empty ones are none."""
    blocks = b"".join(parcel for _, parcel in found).decode().split("\n\n")
    lines = [[line for line in block.split("\n") if line and not line.startswith(":")] for block in blocks]
    return [line.removeprefix("data: ") for block in lines for line in block]


SOURCES = {
    "nothing": ([], 20), "one": ([20], 20), "late": ([0, 0, 20], 20), "long": ([900], 20),
    "long to the end": ([1000, 0, 0], 20), "exact": ([SIZE - 8] * 3, SIZE - 8),
    "one short": ([SIZE - 9, SIZE - 10], 10),
    "two short": ([SIZE - 10], SIZE - 9), "a long end": ([20, 20], 700), "many": ([30] * 4, 40)}


@pytest.mark.parametrize("name", SOURCES)
def test_answers_of_one_class_look_alike(name: str) -> None:
    """One parcel at each multiple from the first on, until one of `total`: whatever came, and when. All of it comes."""
    sizes, last = SOURCES[name]
    found = _leave(Script([_event(size) if size else b"" for size in sizes], _event(last, "z")))
    assert [(round(GRID * number, 6), SIZE) for number in range(1, len(found) + 1)] == [
        (at, len(parcel)) for at, parcel in found]
    assert PER_TOTAL == len(found)
    assert ["x" * size for size in sizes if size] + ["z" * last] == _read(found)


def test_longer_answers_end_at_a_later_multiple_of_the_total() -> None:
    """Text that does not fit until then, and last events that do not."""
    for sizes, last in (([SIZE * 6], 20), ([20], SIZE * 6), ([20] * 7, 20), ([SIZE * 4, 20], SIZE * 2)):
        found = _leave(Script([_event(size) for size in sizes], _event(last, "z")))
        assert {SIZE} == {len(parcel) for _, parcel in found}
        assert 2 * PER_TOTAL == len(found)
        assert ["x" * size for size in sizes] + ["z" * last] == _read(found)


def test_the_end_is_noted_before_the_last_parcel_alone() -> None:
    """That is at a multiple of `total`: a record that is written sooner would show when the text ended."""
    for sizes, last in (([20], 20), ([20] * 4, 20), ([20], 700)):
        source = Script([_event(size) for size in sizes], _event(last))
        _leave(source)
        assert [PER_TOTAL - 1] == source.noted


@pytest.mark.parametrize(("made", "parcels_more"), [
    (0, 0), (60, 0), (SIZE - 8 - 14, 0), (SIZE - 8 - 15, PER_TOTAL), (SIZE - 8 - 16, 0), (900, PER_TOTAL)])
def test_events_that_are_made_at_the_end(made: int, parcels_more: int) -> None:
    """They follow the text at once. The last events wait for the next multiple if need be, after one comment."""
    source = Script([_event(20)], _event(6, "z"), made=_event(made, "y") if made else b"", known=False)
    found = _leave(source)
    assert ["x" * 20, *(["y" * made] if made else []), "z" * 6] == _read(found)
    assert (PER_TOTAL + parcels_more, [PER_TOTAL - 1]) == (len(found), source.noted)
    if made:
        sent = b"".join(parcel for _, parcel in found[PER_TOTAL - 1:])
        assert re.fullmatch(_event(made, "y") + rb"(: *\n)?" + _event(6, "z"), sent)


@pytest.mark.parametrize("last", [20, 700])
def test_an_end_that_cannot_be_noted_is_an_error_in_its_place(last: int) -> None:
    """What ends the answer stays here, also where a part of it has left."""
    found = _leave(Script([_event(20)], _event(last, "z"), fails=True))
    assert (PER_TOTAL, "failed") == (len(found), _read(found)[-1])
    assert "z" * last not in _read(found)


def test_a_late_head_is_on_a_later_multiple() -> None:
    """The end is on the same one."""
    found = _leave(Script([_event(20)], _event(20)), late=0.12)
    assert [0.2, 0.3, 0.4, 0.5] == [at for at, _ in found]


def test_a_busy_machine_leaves_out_no_parcel() -> None:
    """Their number tells the multiple of the end alone. What should have left already leaves at once."""
    found = _leave(Script([_event(20)], _event(20)), slow=0.14)
    assert PER_TOTAL == len(found)
    assert [0.1, 0.24] == [at for at, _ in found[:2]]


@pytest.mark.parametrize("words", [0, 100, SIZE * 2, SIZE * 6])
def test_a_refusal_leaves_as_a_stream(words: int) -> None:
    """JSON with spaces after it, in as many parcels at the same multiples."""
    clock = Clock()
    arrived = clock.now

    async def run() -> AsyncIterator[tuple[float, bytes]]:
        pacer = Pacer(Timing(GRID, TOTAL, cadence=0.01), arrived, clock=clock, sleep=clock.sleep)
        async for parcel in parcels.refusal(json.dumps("x" * words).encode(), pacer, SIZE, end):
            await pacer.leave()
            yield round(clock.now - arrived, 6), parcel

    async def end() -> None:
        ended.append(round(clock.now - arrived, 6))

    async def all_of() -> list[tuple[float, bytes]]:
        return [each async for each in run()]

    ended = list[float]()

    found = asyncio.run(all_of())
    assert json.loads(b"".join(parcel for _, parcel in found)) == "x" * words
    [end_noted] = ended
    assert found[-2][0] <= end_noted < found[-1][0]
    count = PER_TOTAL if words < 4 * SIZE else 2 * PER_TOTAL
    assert [(round(GRID * number, 6), SIZE) for number in range(1, count + 1)] == [
        (at, len(parcel)) for at, parcel in found]


@pytest.mark.parametrize("arrived", [1000.0, 1000.03, 1000.0999])
def test_times_are_the_clocks(arrived: float) -> None:
    """They count from the next multiple after a request's arrival: nothing that delays it by less moves its answer. A
    parcel is made at least an interval before it leaves, while no pass is at work."""
    clock = Clock()
    clock.now = arrived
    made, left = list[float](), list[float]()

    async def run() -> None:
        pacer = Pacer(Timing(GRID, TOTAL, cadence=0.02), arrived, clock=clock, sleep=clock.sleep)
        for _ in range(PER_TOTAL):
            more = await pacer.beat()
            made.append(clock.now)
            await pacer.leave()
            left.append(round(clock.now, 6))
        assert (0, TOTAL) == (more, pacer.held)

    asyncio.run(run())
    first = 1000.1 if arrived == 1000.0 else 1000.2
    assert [round(first + number * GRID, 6) for number in range(PER_TOTAL)] == left
    assert all(0.02 <= there - here <= GRID for here, there in zip(made, left, strict=True))
    assert all(0.75 <= at / 0.02 % 1 <= 15 / 16 for at in made)


def test_a_whole_answer_is_made_before_its_multiple() -> None:
    """So is a refusal. One that is not made in time has the next."""
    for took, end in ((0.1, 0.5), (0.44, 0.5), (0.46, 1.0)):
        clock = Clock()
        pacer = Pacer(Timing(GRID, TOTAL, cadence=0.02), clock.now, clock=clock, sleep=clock.sleep)
        clock.now += took
        asyncio.run(pacer.hold_end())
        assert 0.02 <= 1000 + end - clock.now <= GRID
        assert end == pytest.approx(pacer.held)
        asyncio.run(pacer.leave())
        assert clock.now == pytest.approx(1000 + end)


def test_cover_has_each_size_and_says_nothing() -> None:
    """Wherever it stands between events."""
    for nbytes in range(12):
        assert nbytes == len(parcels.cover(nbytes))
    pieces = [_event(3), *itertools.chain.from_iterable((parcels.cover(each), _event(3)) for each in range(12))]
    assert ["xxx"] * 13 == _read([(0.0, b"".join(pieces))])
