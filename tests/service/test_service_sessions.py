"""Sessions of a served model: found after kill -9 and after an end, by their tenant alone; gone from memory and disk
when their time is over."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.auditor.statedisk import examine
from appliance.boot.planning import budget
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.layouts.attention import PAGE
from appliance.keys.providers import Secret
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from appliance.state.pages import QUEUE_BYTES
from tests.support import family_models, nonces, pages_by_spec, waiting
from tests.support.engines import kernels
from tests.support.extent import some
from tests.support.plain import open_resident
from tests.support.server import KEY, OTHER_KEY, Server, write_policy

KEY_HEX = "2e" * 32
TEXT = "the quick brown fox jumps over the lazy dog. " * 5
MODEL = 'session_persistence = true\n  prefix_cache {{\n    size = "8MiB"\n    lifetime = "{}"\n  }}'
STATE = 'state {{\n  device = "{}"\n  key {{\n    provider = "file"\n    path = "{}"\n  }}\n}}\n'


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk in memory: the policy names devices below /dev."""
    path = Path(f"/dev/shm/appliance-sessions-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, 32 << 20)
    yield path
    path.unlink()


def _policy(folder: Path, disk: Path, model: Path, *, retention: str = "1h", lifetime: str = "1h",
            names: tuple[str, ...] = ("tiny",)) -> Path:
    key = folder / "state.key"
    key.write_text(KEY_HEX)
    key.chmod(0o600)
    policy = write_policy(folder, dict.fromkeys(names, model), schema=2, limits="prompt_tokens = 1500",
                          privacy=f'retention {{ sessions = "{retention}" }}', model=MODEL.format(lifetime))
    policy.write_text(policy.read_text() + STATE.format(disk, key))
    return policy


def _ask(server: Server, text: str, key: str = KEY, model: str = "tiny") -> Any:
    return server.client(key).completions.create(model=model, prompt=text, max_tokens=8, seed=1, temperature=0.5)


def _cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def _keys(disk: Path) -> dict[int, bytes]:
    identity, _, _ = examine(disk, Secret(bytearray.fromhex(KEY_HEX)))
    newest = max(pages_by_spec.tables(bytes.fromhex(KEY_HEX), identity, disk.read_bytes()))
    return {number: key for number, (*_, key) in newest[2].items()}


def _records(disk: Path) -> list[bytes]:
    """The beginnings of records on a disk, of whichever version."""
    data = disk.read_bytes()
    return [data[at:at + 512] for at in range(0, len(data), 4096) if data[at:at + 3] == b"APG"]


def _written(disk: Path) -> int:
    return len(_records(disk))


def _pages(model: Path, text: str) -> tuple[list[int], int, list[tuple[bytes, bytes]]]:
    """Of a text: its token ids, bytes of the keys of a page, and keys and values of each of its pages."""
    with contextlib.closing(open_resident(model)) as source, Engine.open(
            source, EngineOptions(threads=1, slots=1, context_length=1024), kernels=kernels()) as engine:
        ids = engine.tokenizer.encode(text, add_special=True, parse_special=True)
        steps = engine.generate(GenerationRequest(ids, 2, Sampling(temperature=0, seed=1), ignore_end=True))
        next(steps)
        found = [tuple(map(bytes, engine._cache.views(page))) for page in
                 engine._cache.pages_below(0, len(ids) // PAGE * PAGE)]
        steps.close()
        return list(ids), engine.page.halves[0], found  # type: ignore[return-value]


def _memory(server: Server, wanted: list[bytes]) -> list[bool]:
    """Whether some bytes stand in the writable memory of a process, which is halted meanwhile."""
    found, number = [False] * len(wanted), server.process.pid
    os.kill(number, signal.SIGSTOP)
    try:
        maps = Path(f"/proc/{number}/maps").read_text()
        with Path(f"/proc/{number}/mem").open("rb") as memory:
            for start, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.MULTILINE):
                memory.seek(int(start, 16))
                try:
                    content = memory.read(int(end, 16) - int(start, 16))
                except OSError:
                    continue
                found = [seen or one in content for seen, one in zip(found, wanted, strict=True)]
    finally:
        os.kill(number, signal.SIGCONT)
    return found


def test_the_memory_that_they_take(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """The boot's sum has a line for sessions, of what is on its way and of token ids; without them it has none."""
    policy = _policy(tmp_path, disk, tiny_model)
    without = policy.read_text().replace("session_persistence = true", "")
    (tmp_path / "without.hcl").write_text(re.sub("retention {[^}]*}", "", without))
    sums = [budget.divide(load(path).policy, Catalogue({"tiny": tiny_model}), None, threads=1)
            for path in (policy, tmp_path / "without.hcl")]
    page = 2 * _pages(tiny_model, TEXT)[1]
    assert QUEUE_BYTES + 9 * page + (8 << 20) // page * 256 == sums[0].nbytes - sums[1].nbytes
    assert ["tiny: sessions on their way to and from the disk"] == [
        line.what for line in sums[0].lines if line.what not in {each.what for each in sums[1].lines}]


def test_they_outlive_a_kill_and_an_end(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """What was written is found after kill -9, after SIGTERM, and by its own tenant alone; answers are the same."""
    policy, lives = _policy(tmp_path, disk, tiny_model), list[Any]()
    pages = _pages(tiny_model, TEXT)[2]
    assert len(pages) > 1
    for life in range(3):
        server = Server(policy, [tiny_model]).wait_ready()
        lives.append(_ask(server, TEXT))
        if life == 0:
            waiting.until(lambda: len(pages) <= _written(disk), "pages on the disk")
            time.sleep(1.0)
            server.process.kill()
            server.process.wait()
            continue
        other = _ask(server, TEXT, OTHER_KEY)
        assert (0 if life == 1 else len(pages) * PAGE) == _cached(other)
        assert lives[0].choices[0].text == other.choices[0].text
        assert {"models": ["tiny"], "failed": False, "dropped_version": None} == server.http().get(
            "/health").json()["sessions"]
        assert 1 == server.audit("sessions.opened")[-1]["models"]
        assert 0 == server.stop()
    assert [0, len(pages) * PAGE, len(pages) * PAGE] == [_cached(each) for each in lives]
    assert 1 == len({each.choices[0].text for each in lives})


@pytest.mark.slow
def test_two_models_of_one_file(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """Two tenants ask two models of the same file, cache format and context. Whoever reads the disk, and sent one of
    the texts, learns nothing of the other: no page's name is there twice, and no XOR of two records has token ids."""
    texts = TEXT, "five wizards jump over the box of jugs that they packed. " * 5
    ids = [np.array(_pages(tiny_model, text)[0][:64], "<i4").tobytes() for text in texts]
    assert ids[0] != ids[1]
    policy = _policy(tmp_path, disk, tiny_model, names=("one", "two"))
    server = Server(policy, [tiny_model]).wait_ready()
    for text, key, model in zip(texts, (KEY, OTHER_KEY), ("one", "two"), strict=True):
        _ask(server, text, key, model)
    assert ["one", "two"] == server.http().get("/health").json()["sessions"]["models"]
    assert 0 == server.stop()
    records = _records(disk)
    assert len(records) > 4
    assert len(records) == len({record[8:24] for record in records})
    assert [] == nonces.told(records, ids[0], ids[1])
    again = Server(policy, [tiny_model]).wait_ready()
    assert [True, True, False] == [_cached(_ask(again, text, key, model)) > 0 for text, key, model in (
        (texts[0], KEY, "one"), (texts[1], OTHER_KEY, "two"), (texts[0], KEY, "two"))]
    assert 0 == again.stop()


def test_pages_of_an_earlier_version_are_dropped(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """The boot and `/health` say so; the old keys are gone from the disk, and its log stays whole."""
    policy = _policy(tmp_path, disk, tiny_model)
    server = Server(policy, [tiny_model]).wait_ready()
    _ask(server, TEXT)
    assert 0 == server.stop()
    identity, slot, frames = examine(disk, Secret(bytearray.fromhex(KEY_HEX)))
    (counter, following, keys), data = max(pages_by_spec.tables(
        bytes.fromhex(KEY_HEX), identity, disk.read_bytes())), bytearray(disk.read_bytes())
    old = pages_by_spec.table(bytes.fromhex(KEY_HEX), identity, b"s" * 32, (counter, following), [
        (number, *key) for number, key in keys.items()], version=1)
    for at in (len(data) - (128 << 10), len(data) - (64 << 10)):
        data[at:at + (64 << 10)] = old.ljust(64 << 10, b"\0")
    disk.write_bytes(data)
    again = Server(policy, [tiny_model]).wait_ready()
    told = again.http().get("/health").json()
    assert 1 == told["sessions"]["dropped_version"]
    detail, = (step["detail"] for step in told["boot"] if step["step"] == "models")
    assert "sessions that an earlier version kept are dropped (format 1, this one is 2)" in detail
    assert (0, slot.epoch + 1) == (_cached(_ask(again, TEXT)), told["state"]["epoch"])
    assert 0 == again.stop()
    assert old[:64] not in disk.read_bytes()
    assert [each.payload for each in frames] == [each.payload for each in examine(
        disk, Secret(bytearray.fromhex(KEY_HEX)))[2]][:len(frames)]
    third = Server(policy, [tiny_model]).wait_ready()
    assert None is third.http().get("/health").json()["sessions"]["dropped_version"]
    assert _cached(_ask(third, TEXT)) > 0
    assert 0 == third.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", some(["qwen35", "granitehybrid"], 1))  # to what keeps them, states are bytes
def test_a_chat_with_states_goes_on_after_a_kill(name: str, tmp_path: Path, disk: Path) -> None:
    """Of a model whose layers keep states the next turn begins at the last page of the turn before, also after a kill;
    its answer is that of a service that keeps nothing, and the other tenant finds nothing."""
    model = tmp_path / "m.gguf"
    model.write_bytes(family_models.model(name))
    policy = _policy(tmp_path, disk, model)
    policy.write_text(policy.read_text().replace('"8MiB"', '"20MiB"'))
    server, prompt, found = Server(policy, [model]).wait_ready(), [1, *range(20, 150)], list[tuple[int, str]]()
    for _ in range(3):
        answer = server.client().completions.create(model="tiny", prompt=prompt, max_tokens=70, seed=1, temperature=0.5)
        found.append((_cached(answer), answer.choices[0].text))
        records = (len(prompt) + 69) // PAGE
        waiting.until(lambda records=records: _written(disk) >= records and b"APS2" in disk.read_bytes(), "pages")
        prompt = [*prompt, *range(30, 100)]
        server.process.kill()
        server.process.wait()
        server = Server(policy, [model]).wait_ready()
    assert 0 == _cached(server.client(OTHER_KEY).completions.create(model="tiny", prompt=prompt[:150], max_tokens=1))
    assert 0 == server.stop()
    assert [0, 128] == [cached for cached, _ in found[:2]]
    assert found[2][0] in (128, 192)
    whole = tmp_path / "whole"
    whole.mkdir()
    plain = Server(write_policy(whole, {"tiny": model}, schema=2, limits="prompt_tokens = 400"), [model]).wait_ready()
    prompt = [1, *range(20, 150)]
    for _, text in found:
        answer = plain.client().completions.create(model="tiny", prompt=prompt, max_tokens=70, seed=1, temperature=0.5)
        assert text == answer.choices[0].text
        prompt = [*prompt, *range(30, 100)]
    assert 0 == plain.stop()


def test_a_disk_that_fails(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """Health and the audit log say that sessions are kept no more, and answers go on as before."""
    server = Server(_policy(tmp_path, disk, tiny_model), [tiny_model]).wait_ready()
    first = _ask(server, TEXT)
    half = disk.stat().st_size // 2  # pages are behind it: writing them is refused from here on
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (half, half))
    _ask(server, "another text of more than a page, which is to be kept. " * 5)
    waiting.until(lambda: server.http().get("/health").json()["sessions"]["failed"], "the disk's failure")
    waiting.until(lambda: server.audit("sessions.failed"), "the record of the failure")
    assert [1] == [event["models"] for event in server.audit("sessions.failed")]
    assert first.choices[0].text == _ask(server, TEXT).choices[0].text
    assert 0 == server.stop()


@pytest.mark.slow
def test_nothing_is_left_when_their_time_is_over(tmp_path: Path, disk: Path, tiny_model: Path) -> None:
    """A page is in memory and on the disk; a minute later it is in neither, and the disk's key opens no key of a page.
    """
    policy = _policy(tmp_path, disk, tiny_model, retention="1m", lifetime="3s")
    ids, half, pages = _pages(tiny_model, TEXT)
    wanted = [*(part[at:at + 64] for page in pages for part in page for at in (0, half // 2)),
              np.array(ids[:16], np.int32).tobytes()]
    server = Server(policy, [tiny_model]).wait_ready()
    try:
        began = time.monotonic()
        _ask(server, TEXT)
        assert all(_memory(server, wanted))
        waiting.until(lambda: bool(_keys(disk)), "a key on the disk")
        keys = _keys(disk)
        waiting.until(lambda: not any(_memory(server, [wanted[0]])), "memory that is wiped", most=1)
        again = _ask(server, TEXT)  # restored, and kept in memory anew
        assert len(pages) * PAGE == _cached(again)
        time.sleep(max(0.0, began + 50 - time.monotonic()))  # each look reads the whole disk
        waiting.until(lambda: not _keys(disk), "keys that are destroyed", most=1)
        assert time.monotonic() - began <= 60.0
        waiting.until(lambda: not any(_memory(server, [*wanted, *keys.values()])), "memory that is wiped", most=1)
        assert 0 == _cached(_ask(server, TEXT))
    finally:
        server.process.kill()
        server.process.wait()
    assert all(number not in keys for number in _keys(disk))
