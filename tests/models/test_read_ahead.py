"""Reading ahead: the right bytes of each record in whatever order they are asked for, and never an endless wait."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from appliance.models.file.disk import RandomFile
from appliance.models.sources import read_ahead
from appliance.models.sources.read_ahead import BUFFERS, SPAN_NBYTES, FileSpan, ReadAhead, in_turn, spans
from tests.support import waiting

MIB = 1 << 20
HALF = SPAN_NBYTES // 2
SIZES = (4096, 300 << 10, 700 << 10, 1 << 20)


@contextmanager
def _ahead(path: Path, records: list[tuple[int, int]]) -> Iterator[ReadAhead]:
    with closing(ReadAhead(RandomFile(path), records)) as found:
        yield found


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, list[tuple[int, int]]]:
    """A file, its bytes, and records one after the other."""
    records, end, seed = [], 8192, random.Random(1)
    for _ in range(60):
        nbytes = seed.choice(SIZES)
        records.append((end, nbytes))
        end += nbytes + seed.choice((0, 4096, 128 << 10))
    data = random.Random(2).randbytes(1 << 16) * (end // (1 << 16) + 1)
    data = bytes(data[:end])
    path = tmp_path_factory.mktemp("ahead") / "f"
    path.write_bytes(data)
    return path, data, records


@pytest.mark.parametrize(("records", "expected"), [
    ([(4096, 8192), (12288, 4096)], [FileSpan(4096, 12288, 2)]),
    ([(4100, 10), (4200, 10)], [FileSpan(4096, 4096, 2)]),  # of a file whose records are not aligned
    ([(0, 4096), (1 << 20, 4096)], [FileSpan(0, 4096, 1), FileSpan(1 << 20, 4096, 1)]),  # too far apart
    ([(8192, 4096), (0, 4096)], [FileSpan(8192, 4096, 1), FileSpan(0, 4096, 1)]),  # backwards
    ([(0, HALF), (HALF, HALF), (2 * HALF, HALF)], [FileSpan(0, 2 * HALF, 2), FileSpan(2 * HALF, HALF, 1)]),
    ([(4095, SPAN_NBYTES)], [FileSpan(0, SPAN_NBYTES + 4096, 1)]),  # in as many blocks as it can touch
    ([(0, SPAN_NBYTES + 4097), (4 * MIB, 4096)], [FileSpan(4 * MIB, 4096, 1)]),  # too large for a buffer
])
def test_stretches(records: list[tuple[int, int]], expected: list[FileSpan]) -> None:
    """Records that lie together are read together, no further than a buffer holds."""
    found, places = spans(records)
    assert expected == found
    for offset, nbytes in records:
        if offset in places:
            span = found[places[offset]]
            assert span.offset <= offset
            assert offset + nbytes <= span.offset + span.nbytes


def test_matrices_in_turn() -> None:
    """As many records of each matrix as a stretch holds, in turn; all of them, each once."""
    gate, up = ([((first + index) * HALF, HALF) for index in range(5)] for first in (0, 9))
    assert [*gate[:2], *up[:2], *gate[2:4], *up[2:4], gate[4], up[4]] == in_turn([gate, up])
    assert gate == in_turn([gate])
    assert [] == in_turn([])
    assert up == in_turn([[], up])


def _use(ahead: ReadAhead, data: bytes, order: list[tuple[int, int]], wrong: list[int]) -> int:
    """Take and give back; how many were there."""
    there = 0
    for offset, nbytes in order:
        record = ahead.take(offset, nbytes)
        if record is not None:
            there += 1
            if bytes(record[:64]) + bytes(record[-64:]) != data[offset:offset + 64] + data[offset + nbytes - 64:
                                                                                         offset + nbytes]:
                wrong.append(offset)
            record.release()
            ahead.give_back(offset)
    return there


def test_in_order_all_are_read_ahead(stored: tuple[Path, bytes, list[tuple[int, int]]]) -> None:
    """Whoever keeps to the order reads nothing himself, pass after pass."""
    path, data, records = stored
    wrong: list[int] = []
    with _ahead(path, records) as ahead:
        assert [len(records)] * 3 == [_use(ahead, data, records, wrong) for _ in range(3)]
    assert [] == wrong


@pytest.mark.parametrize("seed", range(12))
def test_any_order_ends(seed: int, stored: tuple[Path, bytes, list[tuple[int, int]]]) -> None:
    """Threads that claim records in turn, skip some, begin anew in the middle, or ask for anything get the right
    bytes or none, and all end."""
    path, data, records = stored
    random_order = random.Random(seed)
    used = records[:random_order.choice((1, 3, 9, len(records)))]
    asked = list(used) * 3
    for _ in range(random_order.choice((0, 3))):
        first = random_order.randrange(1 + len(asked))
        del asked[first:first + random_order.randrange(20)]
    if seed % 3 == 0:
        random_order.shuffle(asked)
    asked += [(1, 10), used[0]]
    turn, wrong = iter(asked), list[int]()
    lock = threading.Lock()

    def work(ahead: ReadAhead) -> None:
        while True:
            with lock:
                record = next(turn, None)
            if record is None:
                return
            _use(ahead, data, [record], wrong)

    with _ahead(path, used) as ahead:
        workers = [threading.Thread(target=work, args=(ahead,), daemon=True) for _ in range(1 + seed % 5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(20)
        stuck = any(worker.is_alive() for worker in workers)
        if stuck:  # let them go, so that the test ends
            ahead.close()
        assert not stuck
    assert [] == wrong


def test_who_waits_while_all_buffers_are_used_gets_the_first_that_is_given_back(
        stored: tuple[Path, bytes, list[tuple[int, int]]]) -> None:
    """Also where records of that buffer are left, for which nobody ever asks."""
    path, data, _ = stored
    records = [(index * HALF, HALF) for index in range(4 * BUFFERS)]  # two in each stretch
    wrong: list[int] = []
    with _ahead(path, records) as ahead:
        used = records[:2 * BUFFERS:2]
        assert None not in [ahead.take(*record) for record in used]
        late = threading.Thread(target=_use, args=(ahead, data, records[-1:], wrong), daemon=True)
        late.start()
        waiting.until(lambda: ahead._without, "user that waits")
        assert ahead._without == 1
        for offset, _ in used:
            ahead.give_back(offset)
        late.join(waiting.STALL_SECONDS)
        stuck = late.is_alive()
        if stuck:  # let it go, so that the test ends
            ahead.close()
        assert not stuck
    assert [] == wrong


def test_what_cannot_be_read_is_left_to_the_user(stored: tuple[Path, bytes, list[tuple[int, int]]],
                                                 tmp_path: Path) -> None:
    """Records behind the end of a file that was cut are in no buffer; those before it are."""
    _, data, records = stored
    path = tmp_path / "cut"
    path.write_bytes(data)
    wrong: list[int] = []
    with _ahead(path, records[:1]) as ahead:
        os.truncate(path, records[0][0] + 1)
        assert 0 == _use(ahead, data, records[:1], wrong)
    path.write_bytes(data)
    with _ahead(path, records) as ahead:
        os.truncate(path, records[30][0] + 5000)
        there = _use(ahead, data, records, wrong)
        assert 30 - read_ahead.BUFFERS * 2 <= there <= 31
    assert [] == wrong


def test_a_file_that_was_short_for_a_moment(tmp_path: Path) -> None:
    """Stretches that could not be read once are left to the user for good; those before and behind them are read ahead
    again, and nobody waits for ever."""
    records, path = [(index * SPAN_NBYTES, SPAN_NBYTES) for index in range(6 * BUFFERS)], tmp_path / "f"
    data = random.Random(3).randbytes(1 << 16) * (len(records) * SPAN_NBYTES >> 16)
    path.write_bytes(data)
    first, wrong, there = records[:3 * BUFFERS], list[int](), list[int]()

    def work(ahead: ReadAhead) -> None:
        for _ in range(2):
            there.append(_use(ahead, data, first, wrong))
            time.sleep(0.3)  # readers come to what they cannot read, and stop there

    with _ahead(path, records) as ahead:
        os.truncate(path, len(first) * SPAN_NBYTES)
        assert len(first) == _use(ahead, data, first, wrong)
        time.sleep(0.3)  # they come to what is not there now
        with path.open("r+b") as file:
            file.seek(len(first) * SPAN_NBYTES)
            file.write(data[file.tell():])
        user = threading.Thread(target=work, args=(ahead,), daemon=True)
        user.start()
        user.join(20)
        stuck = user.is_alive()
        if stuck:  # let it go, so that the test ends
            ahead.close()
        assert not stuck
    assert ([len(first)] * 2, []) == (there, wrong)
