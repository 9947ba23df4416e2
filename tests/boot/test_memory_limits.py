"""A served model within a memory limit that the kernel keeps: control groups of either version, and a container."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.sealing import sealing
from benchmarks import memory, models
from benchmarks.cgroups import Group
from benchmarks.residue import Search, known
from tests.support import forked
from tests.support.docker_daemon import docker_daemon
from tests.support.environment import unmeasured
from tests.support.require import absent
from tests.support.sealed_models import KEY

SHAPE = models.Shape(6, 768, 2048, 12, 4, 4000)  # 30 MB: more than the plaintext budget, and slow enough to look at
MIB = 1 << 20
ENOUGH, LITTLE = 190 * MIB, 96 * MIB


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> memory.Case:
    """A sealed model, to be streamed within the default plaintext budget."""
    folder = tmp_path_factory.mktemp("limits")
    before, models.SHAPES["limits"] = dict(models.SHAPES), SHAPE
    plain = models.make("limits", folder)
    models.SHAPES.clear()
    models.SHAPES.update(before)
    (folder / "key").touch(0o600)
    (folder / "key").write_text(KEY.hex())
    sealing.seal(plain, folder / "m.sealed", KEY, tile_size=1 << 18)
    plain.unlink()
    return memory.Case(folder / "m.sealed", folder / "key", prompt=1024, answer=24)


class Forked(memory.Served):
    """A service whose memory nobody limits but its policy: it need not begin with an interpreter of its own."""

    def _start(self, case: memory.Case, limit: int | None) -> None:
        assert limit is None
        self.group = Group("appliance-test", None)
        _python, _module, _name, *words = memory.command(case, self.folder)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = forked.start(words, unmeasured(), out=out.fileno(),  # type: ignore[assignment]
                                         err=err.fileno())
        self.pid = self._process.pid


@pytest.fixture
def _groups() -> None:
    try:
        Group("appliance-test", None).close()
    except OSError as error:
        absent(f"the right to make control groups: {error}")


def _check(row: dict[str, Any], search_found: bool) -> None:
    assert "error" not in row, row["error"]
    assert (1024, 24, 0) == (row["answer"]["prompt_tokens"], row["answer"]["answer_tokens"], row["killed"])
    assert row["use"]["process_peak"] < ENOUGH
    if search_found:
        seen = row["plaintext_seen"]
        assert max(seen["while_answering"]) <= 2 * (os.cpu_count() or 1) << 18
        assert 0 == seen["after"]


@pytest.mark.slow
@pytest.mark.usefixtures("_groups")
def test_in_a_control_group(case: memory.Case) -> None:
    """A prompt is answered within the limit; of the weights no more is in the clear than a tile for each thread, and
    nothing afterwards. The same model kept resident shows that the search finds what is there."""
    search = Search(known(case.file, KEY))
    _check(memory.measure(case, ENOUGH, search, every=0.2), search_found=True)
    resident = memory.measure(memory.Case(case.file, case.key, "false", prompt=64, answer=4), None, search, every=0.2,
                              kind=Forked)
    assert resident["plaintext_seen"]["after"] > 0.9 * case.file.stat().st_size - 2 * MIB


@pytest.mark.usefixtures("_groups")
def test_too_little_for_a_boot(case: memory.Case) -> None:
    """Where the group's limit does not suffice, the boot is refused with the sum; nobody is killed."""
    row = memory.measure(case, LITTLE, None)
    assert "are needed, there are" in row["error"]
    assert "killed for want of memory: 0" in row["error"]
    assert "keys and values (q8)" in row["error"]


@pytest.mark.guests
def test_in_a_container(case: memory.Case) -> None:
    """The same through testcontainers: the limit that the container engine sets is found and kept."""
    with docker_daemon():
        from benchmarks.containers import Contained

        _check(memory.measure(case, ENOUGH, None, kind=Contained), search_found=False)
        assert "are needed, there are" in memory.measure(case, LITTLE, None, kind=Contained)["error"]


def _ask_until_it_ends(served: memory.Served, ids: list[int]) -> None:
    for _ in range(50):
        memory.ask(served.client(), ids, 24)


@pytest.mark.usefixtures("_groups")
def test_kill_9_while_serving(case: memory.Case, tmp_path: Path) -> None:
    """A service that is killed in the middle of an answer leaves the file as it was, and nothing but its log and
    socket; the next one boots and gives the answer to its end, within the policy's memory budget."""
    before, ids = hashlib.sha256(case.file.read_bytes()).digest(), list(range(300, 700))
    for end in ("killed", "served"):
        folder = tmp_path / end
        folder.mkdir()
        served = Forked(dataclasses.replace(case, tee='memory_budget = "190MiB"'), None, folder)
        try:
            served.ready()
            if end == "served":
                assert 24 == memory.ask(served.client(), ids, 24)["answer_tokens"]
                assert served.memory()["process_peak"] < ENOUGH
                continue
            killer = threading.Timer(0.3, os.kill, (served.pid, signal.SIGKILL))
            killer.start()
            with pytest.raises(httpx.HTTPError):
                _ask_until_it_ends(served, ids)
            killer.join()
        finally:
            served.close()
        assert {"policy.hcl", "audit", "api.sock", "out", "err"} >= {path.name for path in folder.iterdir()}
    assert before == hashlib.sha256(case.file.read_bytes()).digest()
    assert {"key", "m.sealed"} == {path.name for path in case.file.parent.iterdir()} - {"synthetic.key"}
