"""A state disk has one writer: a second one is refused, and what two have written at once is found and named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.auditor.statedisk import examine
from appliance.cli.main import main
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.state import device as state_device
from appliance.state import frames
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, LOG_AT, MIN_DISK_BYTES, SLOT_BYTES
from tests.support.engines import synthetic_model
from tests.support.environment import unmeasured
from tests.support.server import Server, write_policy

SECRET = bytes(range(1, 33))
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
audit {{ sink = "state" }}
"""


def _key() -> Secret:
    return Secret(bytearray(SECRET))


def _key_file(folder: Path) -> Path:
    path = folder / "key"
    path.write_text(SECRET.hex())
    path.chmod(0o600)
    return path


@pytest.fixture
def device() -> Iterator[Path]:
    """A blank disk in memory: the policy names devices below /dev."""
    path = Path(f"/dev/shm/appliance-test-writers-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, MIN_DISK_BYTES)
    yield path
    path.unlink()


OPENS = """
import sys
from pathlib import Path
from appliance.keys.providers import Secret
from appliance.state.disk import StateDisk
from appliance.errors import StateError
try:
    StateDisk(Path(sys.argv[1]), Secret(bytearray(range(1, 33))))
except StateError as error:
    print(error.code)
"""


def test_the_second_process_is_refused(device: Path, tmp_path: Path) -> None:
    """By whatever name it has the file, and until the first has closed it, or is gone."""
    linked = tmp_path / "linked"
    linked.symlink_to(device)
    disk = StateDisk(device, _key())
    before = device.read_bytes()
    for path in (device, linked):
        done = subprocess.run([sys.executable, "-c", OPENS, str(path)], capture_output=True, text=True, check=True,
                              env=unmeasured())
        assert "state-in-use\n" == done.stdout
    with pytest.raises(StateError, match="another process uses it"):  # nor another part of this one
        StateDisk(device, _key())
    assert before == device.read_bytes()
    disk.append(AUDIT, b"goes on\n")
    disk.close()
    StateDisk(device, _key()).close()


def test_a_second_boot_stops(device: Path, tmp_path: Path) -> None:
    """Two deployments with one disk: the second says so and ends; the first serves on, and its log is whole."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    servers = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        policy = write_policy(tmp_path / name, {"tiny": model})
        policy.write_text(policy.read_text() + STATE.format(device=device, key=_key_file(tmp_path)))
        servers.append(Server(policy, [model], measured=False))
        if name == "first":
            servers[0].wait_ready()
    with pytest.raises(AssertionError, match=r"boot stopped at step state: .* another process uses it"):
        servers[1].wait_ready()
    servers[0].client().completions.create(model="tiny", prompt="a b", max_tokens=2)
    assert 0 == servers[0].stop()
    assert 1 == examine(device, _key())[1].epoch


@pytest.fixture
def shared(device: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk of which no lock tells that another machine has it."""
    monkeypatch.setattr(state_device.fcntl, "flock", lambda *_: None)
    return device


@pytest.mark.parametrize("act", [lambda disk: disk.append(AUDIT, b"x\n"), lambda disk: disk.save(b"{}")])
def test_the_first_writer_stops_when_another_machine_opens_its_disk(
        act: Callable[[StateDisk], None], shared: Path) -> None:
    """Where no lock helps, what the other one wrote is seen before it is overwritten; that one goes on."""
    first = StateDisk(shared, _key())
    first.append(AUDIT, b"first\n")
    second = StateDisk(shared, _key())
    for _ in range(2):
        with pytest.raises(StateError, match="another appliance writes to this disk"):
            act(first)
    first.close()
    second.append(AUDIT, b"second\n")
    second.close()
    _, slot, frames = examine(shared, _key())
    assert (2, [b"first\n", b"second\n"]) == (slot.epoch, [each.payload for each in frames if each.kind == AUDIT])


def test_a_record_that_another_machine_overwrote_is_noticed(shared: Path) -> None:
    """Both write at the same moment: the one whose record is gone writes nothing more."""
    disk = StateDisk(shared, _key())
    disk.append(AUDIT, b"overwritten\n")
    with shared.open("r+b") as file:
        file.seek(disk._slot.tail - 20)
        file.write(b"another's record")
    with pytest.raises(StateError, match="another appliance writes to this disk"):
        disk.append(AUDIT, b"next\n")
    disk.close()


def _lives(path: Path, lines: list[bytes]) -> bytes:
    """One more life of a disk, with these lines; the disk after it."""
    disk = StateDisk(path, _key())
    for line in lines:
        disk.append(AUDIT, line)
    disk.save(b"")
    disk.close()
    return path.read_bytes()


def _slots(data: bytes) -> bytes:
    return data[:2 * SLOT_BYTES]


MIXTURES: dict[str, Callable[[bytes, bytes], bytes]] = {  # of what two left of one disk: one and another
    "the other's slots": lambda one, other: _slots(other) + one[LOG_AT:],
    "the other's newer slot": lambda one, other: one[:SLOT_BYTES] + other[SLOT_BYTES:LOG_AT] + one[LOG_AT:],
    "the other's older slot": lambda one, other: other[:SLOT_BYTES] + one[SLOT_BYTES:],
    "the other's end of the log": lambda one, other: one[:LOG_AT + 700] + other[LOG_AT + 700:],
    "a page of the other's": lambda one, other: one[:LOG_AT + 512] + other[LOG_AT + 512:LOG_AT + 1024] + one[
        LOG_AT + 1024:],
}


@pytest.mark.parametrize("name", MIXTURES)
def test_what_two_writers_left_is_found_at_the_next_boot_and_by_the_command(
        name: str, device: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As earlier versions left it, which had no lock: the boot stops, and both say what may have happened."""
    _lives(device, [b"common\n"] * 3)
    common = device.read_bytes()
    one = _lives(device, [b"one\n"] * 20)
    device.write_bytes(common)
    other = _lives(device, [b"the other\n"] * 30)
    mixed = MIXTURES[name](one, other)
    device.write_bytes(mixed)
    with pytest.raises(StateError) as caught:
        StateDisk(device, _key())
    assert caught.value.code in ("state-forked", "state-tampered")
    assert "two appliances wrote to" in (caught.value.hint or "")
    assert mixed == device.read_bytes()
    assert 2 == main(["state", str(device), "--key", str(_key_file(tmp_path))])
    assert "two appliances wrote to" in capsys.readouterr().err
    for whole in (one, other):
        device.write_bytes(whole)
        StateDisk(device, _key()).close()


def test_damage_long_ago_is_found(device: Path) -> None:
    """Also where lives without damage followed: the whole log is read at a boot."""
    _lives(device, [b"one\n"] * 3)
    at = LOG_AT + frames.HEAD_BYTES + 70
    for _ in range(3):
        _lives(device, [b"later\n"] * 3)
    with device.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff\xff")
    with pytest.raises(StateError, match="1 authentic record, but") as caught:
        StateDisk(device, _key())
    assert "state-tampered" == caught.value.code
