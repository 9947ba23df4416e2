"""The state disk: survives a kill at every write, notices what the host alters, and is what its specification says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor.statedisk import examine
from appliance.cli.main import main
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.state import frames
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, LOG_AT, MIN_DISK_BYTES, SLOT_BYTES, FrameSealer, Slot
from tests.fuzz import driver, state_fuzz
from tests.support import state_by_spec
from tests.support.environment import unmeasured
from tests.support.state_log import frames_of

SECRET = bytes(range(1, 33))
VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/state-disk-vectors.json").read_text())


def _key() -> Secret:
    return Secret(bytearray(SECRET))


def _blank(folder: Path, size: int = MIN_DISK_BYTES) -> Path:
    path = folder / "disk"
    path.write_bytes(b"")
    os.truncate(path, size)
    return path


def _lines(path: Path) -> list[bytes]:
    return [frame.payload for frame in examine(path, _key())[2] if frame.kind == AUDIT]


def test_what_was_written_is_there_at_the_next_boot(tmp_path: Path) -> None:
    """Records in order, the last snapshot, and one epoch more, by our reader and by that of the specification."""
    path = _blank(tmp_path)
    for epoch in (1, 2, 3):
        disk = StateDisk(path, _key())
        assert (epoch, b"" if epoch == 1 else b"snapshot %d" % (epoch - 1)) == (disk.epoch, disk.saved)
        for number in range(3):
            disk.append(AUDIT, b"line %d.%d\n" % (epoch, number))
        disk.save(b"snapshot %d" % epoch)
        disk.close()
    wanted = [b"line %d.%d\n" % (epoch, number) for epoch in (1, 2, 3) for number in range(3)]
    assert wanted == _lines(path)
    slot, log = state_by_spec.disk(SECRET, path.read_bytes())
    assert (3, 12, b"snapshot 3") == (slot["epoch"], slot["sequence"], slot["saved"])
    assert wanted == [payload for kind, payload in log if kind == 2]
    assert [1, 2, 3] == [int.from_bytes(payload, "little") for kind, payload in log if kind == 1]


class Killed(BaseException):
    """Stands for the end of the process."""


def _life(path: Path, acknowledged: list[bytes], epochs: list[int]) -> None:
    """Boot, write, save, shut down: what the appliance does with a disk."""
    disk = StateDisk(path, _key())
    epochs.append(disk.epoch)
    for number in range(3):
        line = b"%d.%d " % (disk.epoch, number) * 300
        disk.append(AUDIT, line)
        acknowledged.append(line)
        if number == 1:
            disk.save(b"saved in %d" % disk.epoch)
    disk.close()


def _dies_at(nth: int, part: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the nth write reaches the disk in part only, and is the last thing that happens."""
    real, calls = os.pwrite, [0]

    def pwrite(file: int, data: bytes, at: int) -> int:
        calls[0] += 1
        if calls[0] == nth:
            real(file, data[:part(len(data))], at)
            raise Killed
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)


PARTS: dict[str, Callable[[int], int]] = {
    "nothing": lambda _: 0, "one byte": lambda _: 1, "half": lambda size: size // 2,
    "all but one": lambda size: size - 1, "all": lambda size: size}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("before", [0, 1])
def test_a_kill_at_any_write_loses_at_most_what_was_being_written(
        before: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a blank disk and on a used one: every write is cut in turn, then the next boot finds all that was finished."""
    nth = 0
    while True:
        nth += 1
        path, kept, epochs = _blank(tmp_path), list[bytes](), list[int]()
        for _ in range(before):
            _life(path, kept, epochs)
        _dies_at(nth, PARTS[part], monkeypatch)
        try:
            _life(path, kept, epochs)
            died = False
        except Killed:
            died = True
        monkeypatch.undo()
        _life(path, kept, epochs)
        found = _lines(path)
        assert kept == [line for line in found if line in kept]
        assert len(found) - len(kept) in (0, 1)  # the one that was written, but not acknowledged
        assert sorted(set(epochs)) == epochs
        if not died:
            break
    assert nth > 6


WRITER = """
import sys
from pathlib import Path
from appliance.state.disk import StateDisk
from appliance.keys.providers import Secret
disk = StateDisk(Path(sys.argv[1]), Secret(bytearray(range(1, 33))))
number = 0
while True:
    disk.append(2, b"%d.%d" % (disk.epoch, number) + b"x" * (number % 700))
    print(f"{disk.epoch}.{number}", flush=True)
    number += 1
    if number % 7 == 0:
        disk.save(b"%d.%d" % (disk.epoch, number))
"""


def test_a_real_kill(tmp_path: Path) -> None:
    """kill -9 at a random moment, five times: whatever the process had acknowledged is there."""
    path, rng = _blank(tmp_path, 16 << 20), random.Random(5)
    said: list[str] = []
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True,
                                   env=unmeasured())
        assert process.stdout is not None
        said += [process.stdout.readline().strip() for _ in range(rng.randrange(1, 40))]
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0]
        said += [line for line in rest.splitlines(keepends=False) if "." in line and rest.endswith("\n")]
    found = {line.split(b"x")[0].decode() for line in _lines(path)}
    assert set(said) <= found
    assert 5 == StateDisk(path, _key()).epoch - 1


def test_a_write_that_fails_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an input/output error nothing is written any more, so that no number is sealed twice."""
    disk = StateDisk(_blank(tmp_path), _key())

    def refuse(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StateError, match="Input/output error"):
        disk.append(AUDIT, b"x")
    monkeypatch.undo()
    with pytest.raises(StateError, match="must be restarted"):
        disk.append(AUDIT, b"y")
    disk.close()


def test_full(tmp_path: Path) -> None:
    """A full disk refuses the record that does not fit and keeps all others. It does not open, and is not touched;
    made larger, it does, and goes on."""
    path = _blank(tmp_path)
    disk = StateDisk(path, _key())
    count = disk.free // 60_100
    for _ in range(count):
        disk.append(AUDIT, b"x" * 60_000)
    with pytest.raises(StateError, match="full") as caught:
        disk.append(AUDIT, b"x" * 60_000)
    assert "state-full" == caught.value.code
    disk.close()
    assert count == len(_lines(path))
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"full: \d+ of \d+ bytes are left, and a boot's records need 32768") as caught:
        StateDisk(path, _key())
    assert "make the disk larger" in (caught.value.hint or "")
    assert before == path.read_bytes()
    os.truncate(path, len(before) + (1 << 20))
    disk = StateDisk(path, _key())
    disk.append(AUDIT, b"more")
    disk.close()
    assert [*[b"x" * 60_000] * count, b"more"] == _lines(path)


def _used(folder: Path) -> Path:
    path = _blank(folder)
    _life(path, [], [])
    _life(path, [], [])
    return path


TAMPERINGS: dict[str, Callable[[bytearray], None]] = {
    "another disk in its place": lambda data: data.__setitem__(slice(None), os.urandom(len(data))),
    "both slots": lambda data: [data.__setitem__(at, data[at] ^ 1) for at in (100, SLOT_BYTES + 100)] and None,
    "magic of both": lambda data: [data.__setitem__(at, 0) for at in (0, SLOT_BYTES)] and None,
    "ids of both": lambda data: [data.__setitem__(at, data[at] ^ 1) for at in (20, SLOT_BYTES + 20)] and None,
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_an_altered_disk_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing is written over a disk that does not open: the boot stops."""
    path = _used(tmp_path)
    data = bytearray(path.read_bytes())
    TAMPERINGS[name](data)
    path.write_bytes(data)
    with pytest.raises(StateError, match="neither slot opens") as caught:
        StateDisk(path, _key())
    assert "state-tampered" == caught.value.code
    assert bytes(data) == path.read_bytes()


def test_another_key_is_refused(tmp_path: Path) -> None:
    """A disk opens under its own key alone."""
    with pytest.raises(StateError, match="neither slot opens"):
        StateDisk(_used(tmp_path), Secret(bytearray(b"k" * 32)))


def test_an_altered_log_is_noticed_by_who_reads_it(tmp_path: Path) -> None:
    """Every byte of the log counts: a cut, a flip and an exchange of two records are all found."""
    path = _used(tmp_path)
    slot = examine(path, _key())[1]
    whole = path.read_bytes()
    for at in range(LOG_AT, slot.tail, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        with pytest.raises(StateError, match=r"authentic records?, but"):
            examine(path, _key())
    path.write_bytes(whole[:slot.tail - 1] + bytes([whole[slot.tail - 1] ^ 1]) + whole[slot.tail:])
    with pytest.raises(StateError, match=r"authentic records?, but"):
        examine(path, _key())


def test_one_old_slot_changes_nothing(tmp_path: Path) -> None:
    """The newer slot wins; where the host puts back one of the two, the log brings it forward."""
    path = _blank(tmp_path)
    _life(path, [], [])
    old = path.read_bytes()
    _life(path, [], [])
    new = path.read_bytes()
    for kept in (0, 1):
        at = kept * SLOT_BYTES
        path.write_bytes(new[:at] + old[at:at + SLOT_BYTES] + new[at + SLOT_BYTES:])
        disk = StateDisk(path, _key())
        assert (3, 9) == (disk.epoch, disk.records)
        disk.close()


def test_a_whole_old_disk_repeats_an_epoch(tmp_path: Path) -> None:
    """What the disk alone cannot tell: its host puts back all of it. The epoch repeats, the keys do not."""
    path = _blank(tmp_path)
    _life(path, [], [])
    old = path.read_bytes()
    salts = set()
    for _ in range(2):
        path.write_bytes(old)
        _life(path, [], [])
        slot = examine(path, _key())[1]
        assert 2 == slot.epoch
        salts.add(slot.session_salt)
    assert 2 == len(salts)


def test_an_ephemeral_key_begins_anew(tmp_path: Path) -> None:
    """`fresh` gives up what was there under a key that is gone; nothing of it can be read."""
    path = _used(tmp_path)
    disk = StateDisk(path, Secret(bytearray(b"e" * 32)), fresh=True)
    assert (1, b"", 1) == (disk.epoch, disk.saved, disk.records)
    disk.close()
    with pytest.raises(StateError):
        examine(path, _key())


@pytest.mark.parametrize(("make", "match"), [
    (lambda path: path.mkdir(), "Is a directory"), (lambda path: None, "No such file"),
    (lambda path: path.write_bytes(b"\0" * 4096), "at least"), (os.mkfifo, "neither a disk nor a file")])
def test_what_is_no_disk(make: Callable[[Path], Any], match: str, tmp_path: Path) -> None:
    """A folder, nothing, a pipe, something too small: told apart."""
    make(tmp_path / "disk")
    with pytest.raises(StateError, match=match):
        StateDisk(tmp_path / "disk", _key())


def test_the_command_reads_a_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance state` prints the audit log, or a summary; an altered disk ends it with code 2."""
    path, key, kept = _blank(tmp_path), tmp_path / "key", list[bytes]()
    _life(path, kept, [])
    key.write_text(SECRET.hex())
    key.chmod(0o600)
    assert 0 == main(["state", str(path), "--key", str(key)])
    assert b"".join(kept).decode() == capsys.readouterr().out
    assert 0 == main(["state", str(path), "--key", str(key), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (1, 4, 3) == (said["epoch"], said["records"], said["audit_lines"])
    assert said["followed"] is False
    data, (last, end) = path.read_bytes(), [frame.end for frame in examine(path, Secret(bytearray(SECRET)))[2]][-2:]
    path.write_bytes(data[:last] + b"!" + data[last + 1:])
    assert 2 == main(["state", str(path), "--key", str(key)]), "the slot knows of it"
    path.write_bytes(data[:end] + b"ASF1" + data[end + 4:])
    assert 0 == main(["state", str(path), "--key", str(key)])
    assert "are not a record" in capsys.readouterr().err
    (tmp_path / "new").write_bytes(bytes(MIN_DISK_BYTES))
    assert 2 == main(["state", str(tmp_path / "new"), "--key", str(key)])
    assert "is blank" in capsys.readouterr().err
    path.write_bytes(data[:LOG_AT + 200] + b"!" + data[LOG_AT + 201:])
    assert 2 == main(["state", str(path), "--key", str(key)])
    assert "error[state-tampered]" in capsys.readouterr().err


def test_vectors() -> None:
    """The bytes of the specification's vectors, written and read by us, and read by its own reader."""
    secret, disk = bytes.fromhex(VECTORS["secret"]), bytes.fromhex(VECTORS["disk"])
    session, chain, log = None, frames.chain_start(disk), b""
    for number, frame in enumerate(VECTORS["frames"]):
        if frame["kind"] == frames.SESSION:
            session = FrameSealer(secret, disk, bytes.fromhex(frame["salt"]))
        assert session is not None
        sealed = session.seal(number, frame["kind"], bytes.fromhex(frame["payload"]), chain)
        assert frame["bytes"] == sealed.hex()
        chain = frames.next_chain(chain, sealed)
        assert frame["chain"] == chain.hex()
        log += sealed
    slot = Slot(**{name: bytes.fromhex(value) if isinstance(value, str) else value
                   for name, value in VECTORS["slot"]["fields"].items()})
    sealed = frames.seal_slot(secret, disk, bytes.fromhex(VECTORS["slot"]["salt"]), slot)
    assert VECTORS["slot"]["bytes"] == sealed.hex()
    assert (disk, slot) == frames.open_slot(secret, sealed)
    assert [(frame["kind"], bytes.fromhex(frame["payload"])) for frame in VECTORS["frames"]] == state_by_spec.log(
        secret, disk, log)
    found = state_by_spec.slot(secret, sealed)
    assert found is not None
    assert (slot.saved, slot.chain) == (found["saved"], found["chain"])
    for vector in VECTORS["damaged"]:
        data = bytes.fromhex(vector["log"])
        read = [(each.kind, each.payload) for each in frames_of(frames.FrameReader(secret, disk), data)]
        assert vector["records"] == len(read)
        assert read == state_by_spec.log(secret, disk, data)


def test_fuzz() -> None:
    """Mutated disks: no crash, and never a record that nobody wrote, by two readers that must agree."""
    count, finding = driver.run(state_fuzz.fuzz, state_fuzz.seeds(), seconds=3, seed=1, least=101)
    assert finding is None
    assert count > 100


@pytest.mark.parametrize(("name", "told"), [
    ("fifo", "fifo is neither a disk nor a regular file"), ("", " is neither a disk nor a regular file"),
    ("absent", "absent cannot be opened: No such file or directory")])
def test_what_is_no_disk_is_told(name: str, told: str, tmp_path: Path) -> None:
    """A FIFO, which nobody writes to, does not hang whoever checks it."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StateError, match=told):
        examine(tmp_path / name, _key())
