"""Pages of sessions on the state disk: what is flushed is there, what is torn or altered is not served, what is too old
does not open, and the bytes are those of the specification."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from appliance.auditor.statedisk import examine
from appliance.engine.engine import PageKind
from appliance.engine.forward.persistence import NOBODY, RecordName
from appliance.errors import StateError
from appliance.state import page_format, room
from appliance.state.frames import AUDIT
from appliance.state.page_keys import PARTS, erase
from tests.fuzz import driver, pages_fuzz
from tests.support import pages_by_spec, shelves
from tests.support.environment import unmeasured
from tests.support.shelves import LIFETIME, SECRET, Clock, Open, start

HALF = 6000
KIND = PageKind((HALF, HALF), "kv_cache f16\npage 64\ncontext 400\narithmetic 1\n", 6, 6)
MODEL = b"\1" * 32
TENANTS = ("one", "two")
PARTIAL: dict[str, Callable[[int], int]] = {
    "nothing": lambda _: 0, "one byte": lambda _: 1, "half": lambda size: size // 2,
    "all but one": lambda size: size - 1, "all": lambda size: size}


def tokens(seed: int) -> np.ndarray:
    """64 token ids."""
    return np.random.default_rng(seed).integers(0, 50_000, 64).astype(np.int32)


def page(seed: int) -> tuple[memoryview, memoryview]:
    """Keys and values whose bytes follow from a number."""
    made = [bytearray(np.random.default_rng((seed, part)).bytes(HALF)) for part in (1, 2)]
    return memoryview(made[0]), memoryview(made[1])


def put(opened: Open, place: int, seed: int, before: RecordName = NOBODY, tenant: str = "one") -> RecordName:
    """Put a page and wait until it is written."""
    name = opened.shelf.put(place, tenant, before, tokens(seed), page(seed))
    assert name is not None
    opened.shelf.flush(30)
    return name


def read(opened: Open, tenants: tuple[str, ...] = TENANTS) -> dict[int, tuple[bytes, bytes] | None]:
    """Of each page that is there by its first token id: what opens. Its tokens must be those of its label."""
    found = dict[int, tuple[bytes, bytes] | None]()
    for entry in opened.shelf.entries(tenants):
        content = memoryview(bytearray(b"x" * HALF)), memoryview(bytearray(b"x" * HALF))
        record = opened.shelf.fetch(entry.place).result(30)
        whole = opened.shelf.open(record, entry.place, entry.tenant, entry.name, content)
        assert whole or not any(bytes(content[0]) + bytes(content[1]))
        found[int(entry.tokens[0])] = (bytes(content[0]), bytes(content[1])) if whole else None
    return found


def expected(*seeds: int) -> dict[int, tuple[bytes, bytes]]:
    """The same of pages that must be there."""
    return {int(tokens(seed)[0]): (bytes(page(seed)[0]), bytes(page(seed)[1])) for seed in seeds}


def test_a_new_process_finds_them_and_so_does_the_specification(tmp_path: Path) -> None:
    """Two lives write; a third finds all with names, tenants and texts; so does a reader of the specification."""
    disk = shelves.blank(tmp_path)
    first = start(disk, KIND)
    one = put(first, 0, 1)
    two = put(first, 1, 2, one, "two")
    first.close()
    second = start(disk, KIND)
    put(second, 4, 3, two, "two")
    second.close()
    third = start(disk, KIND)
    assert expected(1, 2, 3) == read(third)
    assert expected(2, 3) == read(third, ("two",))
    assert [(0, one, NOBODY, "one"), (1, two, one, "two"), (4, (2, 1), two, "two")] == [
        (each.place, each.name, each.before, each.tenant) for each in third.shelf.entries(TENANTS)]
    third.close()
    data, (identity, _, frames) = disk.read_bytes(), examine(disk, _secret())
    counter, _, keys = max(pages_by_spec.tables(SECRET, identity, data))
    assert struct.pack("<QI", counter, 1) == [frame.payload for frame in frames if frame.kind == 3][-1]
    found = list(pages_by_spec.records(data, {number: key for number, (*_, key) in keys.items()}, pages_by_spec.binding(
        "tiny", first.at, MODEL.hex(), KIND.arithmetic), KIND.halves))
    assert expected(1, 2, 3) == {each.tokens[0]: (each.keys, each.values) for each in found}
    assert [each.tokens for each in found] == [tuple(map(int, tokens(seed))) for seed in (1, 2, 3)]


def _secret():
    from appliance.keys.providers import Secret
    return Secret(bytearray(SECRET))


def _life(disk: Path, sure: dict[int, int], tried: set[int]) -> None:
    """Open, write three pages, some over others, and close. `sure`: what is flushed, by place; `tried`: all that was
    put."""
    opened = start(disk, KIND)
    try:
        for seed, place in ((10 + opened.disk.epoch, 0), (20 + opened.disk.epoch, 1), (30 + opened.disk.epoch, 0)):
            sure.pop(place, None)
            tried.add(seed)
            opened.shelf.put(place, "one", NOBODY, tokens(seed), page(seed))
            opened.shelf.flush(30)
            if opened.keeper.broken:
                raise KilledError
            sure[place] = seed
    except KilledError:
        opened.kill()
        raise
    opened.close()


class KilledError(OSError):
    """Stands for the end of the process: nothing is written from here on."""


@pytest.mark.parametrize("part", PARTIAL)
def test_a_kill_at_any_write(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of a life is cut in turn: the next life finds every page that was flushed, and no page that is torn
    opens, also where it was written over another one."""
    nth, ended = 0, False
    while not ended:
        nth += 1
        disk, sure, tried = shelves.blank(tmp_path), dict[int, int](), set[int]()
        _life(disk, sure, tried)
        real, calls = os.pwrite, [0]

        def pwrite(file: int, data: bytes, at: int, *, calls: list[int] = calls, nth: int = nth,
                   real: Callable[..., int] = real) -> int:
            calls[0] += 1
            if calls[0] == nth:
                real(file, data[:PARTIAL[part](len(data))], at)
            if calls[0] >= nth:
                raise KilledError
            return real(file, data, at)
        monkeypatch.setattr(os, "pwrite", pwrite)
        with contextlib.suppress(KilledError, StateError):
            _life(disk, sure, tried)
        ended = calls[0] < nth
        monkeypatch.undo()
        after = start(disk, KIND)
        found = read(after)
        after.close()
        whole = {token: content for token, content in found.items() if content is not None}
        assert expected(*sure.values()).items() <= whole.items() <= expected(*tried).items(), nth
    assert nth > 10


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    """Real processes write until they are killed, at some moment: all that they said was flushed is there."""
    disk = shelves.blank(tmp_path)
    program = ("import sys\nfrom pathlib import Path\nfrom tests.state.test_session_pages import *\n"
               "disk, base = Path(sys.argv[1]), int(sys.argv[2])\nopened = start(disk, KIND)\n"
               "for number in range(10**6):\n"
               "    put(opened, number % 6, base + number)\n    print(base + number, flush=True)\n")
    written = list[int]()
    for life in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, str(disk), str(1000 * (life + 1))],
                                   stdout=subprocess.PIPE, text=True, env=unmeasured())
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(8)]
        time.sleep(random.random() / 20)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        process.wait()
        written = [int(line) for line in lines if line.strip()]
        opened = start(disk, KIND)
        found = read(opened)
        opened.kill()
        sure = expected(*written[-5:])  # the one place after them may be torn
        assert sure.items() <= found.items()
        assert all(content is None or content in expected(*range(1000 * (life + 1), written[-1] + 7)).values()
                   for token, content in found.items() if token in expected(*range(1000 * (life + 1), written[-1] + 7)))


@pytest.mark.parametrize("other", ["label", "model", "format", "tenant", "secret"])
def test_what_they_are_bound_to(other: str, tmp_path: Path) -> None:
    """Another label, model, cache format or tenant finds nothing; another disk's key does not even open the disk."""
    disk = shelves.blank(tmp_path)
    opened = start(disk, KIND)
    put(opened, 0, 1)
    opened.close()
    if other == "secret":
        with pytest.raises(StateError) as caught:
            start(disk, KIND, secret=bytes(range(2, 34)))
        assert "state-tampered" == caught.value.code
        return
    kind = PageKind((HALF, HALF), KIND.arithmetic.replace("f16", "q8"), 6, 6) if other == "format" else KIND
    again = start(disk, kind, model=b"\2" * 32 if other == "model" else MODEL,
                  labels=("other",) if other == "label" else ("tiny",))
    assert {} == read(again, ("two",) if other == "tenant" else TENANTS)
    again.close()
    assert other in ("label", "model", "format", "tenant")


def test_altered_bytes_are_not_served(tmp_path: Path) -> None:
    """A flipped bit anywhere in a record, and a record in another's place: the page is not there, or does not open."""
    disk = shelves.blank(tmp_path)
    opened = start(disk, KIND)
    put(opened, 0, 1)
    put(opened, 1, 2)
    opened.close()
    good, stride = disk.read_bytes(), page_format.content_nbytes((HALF, HALF))
    used = page_format.BODY_AT + 2 * (HALF + 16)
    ignored = range(page_format.LABEL_END, page_format.BODY_AT)
    for at in {*range(24), *random.Random(1).sample(range(24, used), 60)} - set(ignored):
        data = bytearray(good)
        data[opened.at + at] ^= 1 << at % 8
        disk.write_bytes(data)
        again = start(disk, KIND)
        assert None is read(again).get(int(tokens(1)[0])), at
        assert expected(2).items() <= read(again).items()
        again.kill()
    swapped = bytearray(good)
    swapped[opened.at:opened.at + stride] = good[opened.at + stride:opened.at + 2 * stride]
    disk.write_bytes(swapped)
    again = start(disk, KIND)
    assert expected(2) == read(again)
    again.kill()


def test_what_is_too_old_does_not_open(tmp_path: Path) -> None:
    """A page is served for at least seven eighths of its lifetime, and never longer than all of it. Then its key is in
    neither table, and nothing on the disk opens, by the specification and with the disk's own key."""
    disk, clock = shelves.blank(tmp_path), Clock()
    opened = start(disk, KIND, clock=clock, threads=False)
    clock.sleep(100)
    name = opened.shelf.put(0, "one", NOBODY, tokens(1), page(1))
    assert name is not None
    opened.keeper.start()
    opened.shelf.flush(30)
    part = LIFETIME / 1000 / PARTS
    clock.sleep(14 * part - 1)
    opened.keys.tend()
    assert opened.shelf.alive(name.key)
    old = disk.read_bytes()
    clock.sleep(part + 2)
    assert not opened.shelf.alive(name.key)
    opened.keys.tend()
    data, identity = disk.read_bytes(), opened.disk.disk
    assert [{}, {}] == [keys for *_, keys in pages_by_spec.tables(SECRET, identity, data)]
    assert all(keys for *_, keys in pages_by_spec.tables(SECRET, identity, old))
    opened.close()
    again = start(disk, KIND, clock=clock)
    assert {} == read(again)
    again.close()
    tables = slice(opened.disk.end + page_format.content_nbytes((HALF, HALF)) * 6, None)
    assert old[tables] != disk.read_bytes()[tables]
    data = bytearray(disk.read_bytes())
    data[tables] = old[tables]  # the host puts both tables back: the log knows better
    disk.write_bytes(data)
    clock.host -= 1e6
    again = start(disk, KIND, clock=clock)
    assert {} == read(again)
    again.close()


@pytest.mark.parametrize(("running", "host", "killed", "there"), [
    (0, 0, False, True), (13.9, 0, False, True), (0, 13.9, False, True),
    (15.1, 0, False, False), (0, 15.1, False, False),
    (13.9, -1000, False, True), (13.9, 0, True, True), (14.2, 0, True, False)])
def test_age_over_restarts(running: float, host: float, killed: bool, there: bool, tmp_path: Path) -> None:
    """Time counts while the appliance runs, and by the host's clock: whichever says more. A kill counts as a part."""
    disk, part, clock = shelves.blank(tmp_path), LIFETIME / 1000 / PARTS, Clock()
    opened = start(disk, KIND, clock=clock)
    put(opened, 0, 1)
    for _ in range(16):  # as it is noted from time to time
        clock.running += running * part / 16
        opened.keys.tend()
    (opened.kill if killed else opened.close)()
    clock.running = 5.0  # of another process
    clock.host += host * part
    again = start(disk, KIND, clock=clock)
    assert (expected(1) if there else {}) == read(again)
    again.close()


def test_keys_are_wiped(tmp_path: Path) -> None:
    """No key is in memory after the end, nor after its time."""
    disk = shelves.blank(tmp_path)
    opened = start(disk, KIND)
    name = put(opened, 0, 1)
    secret = opened.keys._live[name.key].key.secret
    place = (ctypes.c_char * 32).from_buffer(secret)
    assert any(place.raw)
    opened.close()
    assert not any(place.raw)


def test_a_policy_without_sessions_destroys_the_keys(tmp_path: Path) -> None:
    """The keys of earlier sessions go at a boot that keeps none."""
    from appliance.state.disk import StateDisk
    disk = shelves.blank(tmp_path)
    opened = start(disk, KIND)
    put(opened, 0, 1)
    opened.close()
    without = StateDisk(disk, _secret())
    erase(without, without.end - page_format.TABLES_BYTES)
    without.close()
    assert [] == pages_by_spec.tables(SECRET, opened.disk.disk, disk.read_bytes())
    again = start(disk, KIND)
    assert {} == read(again)
    again.close()


def test_no_room(tmp_path: Path) -> None:
    """A disk that is too small for sessions beside its log stops the boot, and says what would help."""
    with pytest.raises(StateError) as caught:
        start(shelves.blank(tmp_path, 4 << 20), PageKind((1 << 20, 1 << 20), "", 2, 2))
    assert "state-full" == caught.value.code
    assert "make the disk larger" in (caught.value.hint or "")


def test_a_disk_that_grew_keeps_sessions_at_its_new_end(tmp_path: Path) -> None:
    """Texts that were kept at the old end are read again; the log, which goes on over them, is whole, and new texts are
    kept."""
    disk = shelves.blank(tmp_path)
    opened = start(disk, KIND)
    put(opened, 0, 1)
    opened.close()
    os.truncate(disk, disk.stat().st_size + (8 << 20))
    opened = start(disk, KIND)
    assert {} == read(opened)
    while opened.disk.free > room.OWN_BYTES:  # over what was there before
        opened.disk.append(AUDIT, b"x" * 60_000)
    put(opened, 2, 3)
    opened.close()
    again = start(disk, KIND)
    assert 1 == len(read(again))
    again.close()


def test_whatever_the_host_wrote() -> None:
    """Mutations: no exception, nothing that nobody sealed, and what a reader of the specification finds."""
    count, finding = driver.run(pages_fuzz.fuzz, pages_fuzz.seeds(), seconds=3, seed=1, least=101)
    assert finding is None, finding
    assert count > 100
