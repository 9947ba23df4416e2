"""States on a state disk: a chat goes on in a new process, with the bits of reading all of it again."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.engine import Engine
from appliance.engine.forward.states import StateRooms, state_nbytes
from appliance.engine.scheduler import Scheduler
from appliance.state import page_format
from tests.engine.test_engine_states import IDS, KINDS, _alone, _request, _states, running
from tests.support import family_models, shelves

ROOM = 3 << 20


def turn(engine: Engine, disk: Path, prompt: list[int], tokens: int = 40, tenant: str = "a",
         shelf: Any = lambda shelf: shelf) -> tuple[int, list[int]]:
    """One turn in a process of its own: tokens of the prompt that were not read, and those of the answer."""
    opened, answer = shelves.start(disk, engine.page), list[int]()
    scheduler = Scheduler(engine, tenants=("a", "b"), prefix_lifetime=60.0, shelf=shelf(opened.shelf))
    try:
        handle = scheduler.submit(_request(9, prompt, tokens), tenant, lambda advance: answer.append(advance.token))
        assert handle.wait(60)
    finally:
        scheduler.close()
        opened.close()
    assert not _states(engine).any()
    assert not engine._cache._memory.view("u1").any()
    return handle.cached_tokens, answer


@pytest.mark.parametrize(("name", "kind"), [*((name, "f16") for name in KINDS), ("nemotron_h_moe", "f16"),
                                            ("lfm2", "q8"), ("qwen35", "q4")])
def test_a_chat_goes_on_after_restarts(name: str, kind: str, tmp_path: Path) -> None:
    """Each turn begins at the last whole page of the turn before, its answer included. The other tenant finds nothing.
    A process that got a state from the disk keeps it in memory."""
    disk, prompt = shelves.blank(tmp_path), IDS[:75]
    with running(name, kv_cache=kind, prefix_nbytes=ROOM) as engine, running(name, kv_cache=kind, threads=1) as cold:
        for expected in (0, 64, 128):
            found, answer = turn(engine, disk, prompt)
            alone = [advance.token for advance in cold.generate(_request(9, prompt, 40))]
            assert (expected, alone) == (found, answer)
            prompt = [*prompt, *answer, *IDS[90:100]]
        assert 0 == turn(engine, disk, prompt[:190], 1, "b")[0]
        opened = shelves.start(disk, engine.page)
        scheduler = Scheduler(engine, tenants=("a", "b"), prefix_lifetime=60.0, shelf=opened.shelf)
        for _ in range(2):
            handle = scheduler.submit(_request(9, prompt[:150], 1), "a", lambda advance: None)
            assert (True, 128) == (handle.wait(60), handle.cached_tokens)
            opened.keeper.broken = True  # the second one finds it in memory
        scheduler.close()
        opened.kill()


def _places(disk: Path, engine: Engine, magic: bytes) -> list[int]:
    """The bytes at which records of a kind begin."""
    data = disk.read_bytes()
    return [at for at in range(0, len(data) - 512, page_format.BLOCK) if data[at:at + 4] == magic]


@pytest.mark.parametrize(("magic", "which"), [(b"APS2", 0), (b"APG2", 0)])
def test_what_is_torn_is_read_again(magic: bytes, which: int, tmp_path: Path) -> None:
    """Of a text whose state, or whose first page, does not open nothing is restored; it is put anew."""
    disk, prompt = shelves.blank(tmp_path), IDS[:75]
    with running(prefix_nbytes=ROOM) as engine:
        assert 0 == turn(engine, disk, prompt, 1)[0]
        data = bytearray(disk.read_bytes())
        data[_places(disk, engine, magic)[which] + 600] ^= 1
        disk.write_bytes(data)
        torn, whole = (turn(engine, disk, prompt, 12) for _ in range(2))
    assert (0, 64) == (torn[0], whole[0])
    assert _alone("lfm2", [_request(9, prompt, 12)])[0] == torn[1] == whole[1]


def test_pages_in_memory_go_on_with_those_on_the_disk(tmp_path: Path) -> None:
    """A text of which a part is in memory with its state gets the rest, and a later state, from the disk."""
    disk, long = shelves.blank(tmp_path), [*IDS[:139], *IDS[20:70]]
    with running(prefix_nbytes=ROOM) as engine:
        assert 0 == turn(engine, disk, IDS[:70], 1)[0]
        assert 64 == turn(engine, disk, long, 1)[0]
        opened = shelves.start(disk, engine.page)
        scheduler = Scheduler(engine, tenants=("a", "b"), prefix_lifetime=60.0, shelf=opened.shelf)
        found = []
        for prompt in (IDS[:70], long):
            answer: list[int] = []
            handle = scheduler.submit(_request(9, prompt, 5), "a", lambda one, answer=answer: answer.append(one.token))
            assert handle.wait(60)
            found.append((handle.cached_tokens, answer))
        scheduler.close()
        opened.close()
    assert [64, 128] == [cached for cached, _ in found]
    assert _alone("lfm2", [_request(9, IDS[:70], 5), _request(9, long, 5)]) == [answer for _, answer in found]


class Stuck:
    """A shelf whose states do not come; its pages do."""

    def __init__(self, shelf: Any) -> None:
        self._shelf = shelf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shelf, name)

    def fetch(self, place: int) -> Future[bytes]:
        """A state that is not read."""
        if place < self._shelf.places:
            return self._shelf.fetch(place)
        failed = Future[bytes]()
        failed.set_exception(OSError(5, "broken"))
        return failed


def test_pages_whose_state_does_not_come_are_read_again(tmp_path: Path) -> None:
    """The pages that were restored already are written again; the answer is the same."""
    disk = shelves.blank(tmp_path)
    with running(prefix_nbytes=ROOM) as engine:
        assert 0 == turn(engine, disk, IDS, 1)[0]
        assert (0, _alone("lfm2", [_request(9, IDS, 12)])[0]) == turn(engine, disk, IDS, 12, shelf=Stuck)
        assert 128 == turn(engine, disk, IDS, 1)[0]


def test_a_full_share_of_the_disk_lets_states_go(tmp_path: Path) -> None:
    """The last texts of a tenant are found after a restart; one of the other tenant, too."""
    shape, disk = family_models.architecture("lfm2"), shelves.blank(tmp_path)
    texts = [[*IDS[start:start + 70]] for start in range(6)]
    with running(prefix_nbytes=state_nbytes(shape) * 4 + 6 * (16384 + state_nbytes(shape))) as engine:
        assert 0 < engine.page.states // 2 < 4
        assert [0] * 6 == [turn(engine, disk, each, 1, "b" if each == texts[0] else "a")[0] for each in texts]
        assert [64, 64] == [turn(engine, disk, texts[5], 1)[0], turn(engine, disk, texts[0], 1, "b")[0]]
        assert 0 == turn(engine, disk, texts[1], 1)[0]


def test_rooms_by_their_numbers() -> None:
    """Each tenant has its share; a room that is named is taken; what goes is free again."""
    gone = list[int]()
    rooms = StateRooms(range(10, 14), ("a", "b"), {}, gone.append)
    assert [12, None] == [rooms.take("a", 1, 12), rooms.take("a", 1)]
    assert {13, 11} == {rooms.take("a", 2), rooms.take("b", 3)}
    assert 12 == rooms.take("a", 4, None)
    assert ([12], None, 2) == (gone, rooms.room(1), rooms.longest([1, 2, 9]))
    rooms.divide(("b", "c", "d", "e"), {})
    assert (1, None, 11) == (rooms.shares["b"], rooms.room(2), rooms.room(3))
    assert None is rooms.take("a", 5)
