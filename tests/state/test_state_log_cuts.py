"""The chained log on a state disk, under power cuts at each of its writes, and on disks that lose what they flushed.

A life writes records that expire, records with a receipt and checkpoints. A disk is cut at each write in turn, and a
disk that lies loses each write, or all from one on. Nothing that was finished is lost, what is torn is told, and what
a lying disk lost is found by any receipt from after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.auditor.examine import examine
from appliance.auditor.held import Anchor
from appliance.auditor.outcome import Report
from appliance.auditor.statedisk import examine as examine_disk
from appliance.errors import AuditError, StateError
from appliance.keys.providers import Secret
from appliance.state import audit_sink
from appliance.state.audit_sink import StateSink
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES
from appliance.transparency import reading
from appliance.transparency.tree import leaf_hash
from tests.support.environment import unmeasured

SECRET = bytes(range(1, 33))
HOUR_MS = 3_600_000
FIELDS = {"endpoint": "/v1/completions", "status": 200}


class Cut(BaseException):
    """Stands for the end of the power."""


@dataclass
class Held:
    """What the world outside has: receipts of records, and how many records were finished at each."""

    receipts: list[Anchor] = field(default_factory=list)
    finished: list[bytes] = field(default_factory=list)  # leaves
    torn: list[int] = field(default_factory=list)        # bytes that each boot cut off


def life(path: Path, held: Held, records: int = 3) -> None:
    """One boot: it opens the disk, writes, checkpoints and ends in order."""
    sink, chain = StateSink(), Chain()
    log = AuditLog(sink, strict=True, version=3)
    with closing(StateDisk(path, Secret(bytearray(SECRET)),
                           heard=lambda line: chain.follow(line.rstrip(b"\n")))) as disk:
        sink.attach(disk)
        held.torn.append(disk.torn)
        log.begin(chain, audit_sink.audit_key(disk), log=disk.disk, epoch=disk.epoch, repaired=disk.torn)
        audit_sink.retain(HOUR_MS, disk, log)
        for number in range(records):
            sealed = log.write_signed("request.done", request=f"req-{number:032x}", receipt=True, **FIELDS)
            held.receipts.append(Anchor(f"receipt of {sealed.seq}", sealed.head.checkpoint, sealed.head.note))
            held.finished.append(sealed.leaf)
            if number == 1:
                log.checkpoint()
                disk.snapshot.replace_quotas(b'{"accounts":{},"format":"appliance/quotas/v1"}')
        log.close()


def lines(path: Path) -> list[bytes]:
    return [frame.payload for frame in examine_disk(path, Secret(bytearray(SECRET)))[2] if frame.kind == AUDIT]


def report(path: Path, held: Held) -> Report:
    return examine(lines(path), anchors=held.receipts)


def blank(path: Path) -> Path:
    path.write_bytes(bytes(MIN_DISK_BYTES))
    return path


def _cut_at(nth: int, portion: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, a part of the nth write reaches the disk, and nothing after it."""
    real, calls = os.pwrite, [0]

    def pwrite(file: int, data: bytes, at: int) -> int:
        calls[0] += 1
        if calls[0] < nth:
            return real(file, data, at)
        if calls[0] == nth:
            real(file, data[:portion(len(data))], at)
        raise Cut

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("part", ["nothing", "one byte", "half", "all but one", "all"])
def test_a_cut_at_any_write_is_repaired_and_told(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record with a receipt is still there, the log goes on, and every boot tells what it cut off."""
    portion = {"nothing": lambda _: 0, "one byte": lambda _: 1, "half": lambda size: size // 2,
               "all but one": lambda size: size - 1, "all": lambda size: size}[part]
    told, nth, died = 0, 0, True
    first = Held()
    life(blank(tmp_path / "used"), first)
    used = (tmp_path / "used").read_bytes()
    while died:
        nth, path = nth + 1, tmp_path / "disk"
        held = Held(first.receipts[:], first.finished[:])
        path.write_bytes(used)

        _cut_at(nth, portion, monkeypatch)
        try:
            life(path, held)
            died = False
        except (Cut, StateError):  # the latter by what closes the disk when the power is gone
            pass
        monkeypatch.undo()
        life(path, held, 1)
        found = report(path, held)
        assert (None, True) == (found.bad, set(held.finished) <= set(_leaves(path)))
        assert found.records - 1 == found.proved
        assert held.torn[-1] == found.boots[-1].repaired_bytes
        told += held.torn[-1] > 0
    assert nth > 10
    assert (told > 0) == (part in ("one byte", "half", "all but one"))


def _leaves(path: Path) -> list[bytes]:
    return [leaf_hash(line.rstrip(b"\n")) for line in lines(path)]


def _recorded(path: Path, held: Held, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """The writes of one life, in order."""
    real, made = os.pwrite, list[tuple[int, bytes]]()

    def pwrite(file: int, data: bytes, at: int) -> int:
        made.append((at, bytes(data)))
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    life(path, held)
    monkeypatch.undo()
    return made


@pytest.mark.parametrize("which", ["all from one on", "one alone"])
def test_a_disk_that_loses_flushed_data_is_found_out(
        which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next boot refuses the disk, or any receipt from after the loss contradicts its log; nobody is content."""
    path, held = blank(tmp_path / "disk"), Held()
    life(path, held)
    before = bytearray(path.read_bytes())
    writes = _recorded(path, held, monkeypatch)
    newest = max(held.receipts, key=lambda each: each.checkpoint.size)
    contradicted = refused = harmless = 0
    for number in range(len(writes)):
        disk = bytearray(before)
        for other, (at, data) in enumerate(writes):
            if other < number or (other > number and which == "one alone"):
                disk[at:at + len(data)] = data
        path.write_bytes(disk)
        again = Held(held.receipts[:])
        try:
            life(path, again, 1)
        except (StateError, AuditError):
            refused += 1
            continue
        found = examine(lines(path), anchors=[newest])
        if found.bad is None:  # it lost nothing that the receipt knows of
            assert set(held.finished) <= set(_leaves(path))
            harmless += 1
        else:
            assert found.bad.position <= newest.checkpoint.size
            contradicted += 1
    assert contradicted + refused + harmless == len(writes)
    assert contradicted > 0 if which == "all from one on" else refused > 0


WRITER = """
import sys
from pathlib import Path
from tests.state.test_state_log_cuts import Held, life

class Printing(list):
    def append(self, anchor):
        sys.stdout.write(anchor.note.encode().decode() + "\\0")
        sys.stdout.flush()

held = Held()
held.receipts = Printing()
while True:
    life(Path(sys.argv[1]), held, 40)
"""


def test_kills_at_any_moment(tmp_path: Path) -> None:
    """A process that is killed while it writes has lost no record of which the world outside has a receipt."""
    path, held = blank(tmp_path / "disk"), Held()
    os.truncate(path, 8 << 20)
    for milliseconds in (5, 23, 60, 110, 170):
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE,
                              env=unmeasured()) as process:
            assert process.stdout is not None
            head = process.stdout.read(1)  # it runs
            with suppress(subprocess.TimeoutExpired):
                process.wait(milliseconds / 1000)
            process.send_signal(signal.SIGKILL)
            told = (head + process.stdout.read()).decode().split("\0")[:-1]  # the last may be cut
        for text in told:
            signed = reading.note(text.encode())
            held.receipts.append(Anchor("receipt", reading.head(signed.text), signed))
    assert len(held.receipts) > 5
    life(path, held, 1)
    found = report(path, held)
    assert found.bad is None
    assert 6 <= len(found.boots)
