"""Retention: requests' records are sealed by the specification, and gone with their key, while the log verifies."""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance import hostclock
from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.audit.periods import Periods, Seeds
from appliance.auditor import held, unsealing
from appliance.auditor.examine import examine
from appliance.auditor.records import Reader, WrongRecordError
from appliance.auditor.statedisk import examine as examine_disk
from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.errors import AuditError, NoteError, StateError
from appliance.keys.providers import Secret
from appliance.state import audit_sink
from appliance.state.audit_sink import StateSink
from appliance.state.disk import StateDisk
from tests.support.state_by_spec import slot

HOUR = 3_600
SECRET = bytes(range(32))
FIELDS = {"request": "req-" + "0a" * 16, "endpoint": "/v1/completions", "status": 200, "tenant": "acme",
          "model": "demo", "prompt_tokens": 48}


class Clock:
    """The host's clock, and the kernel's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.mono = 1_800_000_000.0, 5.0
        monkeypatch.setattr(hostclock, "seconds", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.mono)
        for name in ("time", "time_ns"):  # the command line puts the clock there, for the rest of the process
            monkeypatch.setattr(time, name, getattr(time, name))

    def pass_by(self, seconds: float) -> None:
        """Both go on."""
        self.wall, self.mono = self.wall + seconds, self.mono + seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Store:
    """Seeds as a disk keeps them."""

    def __init__(self) -> None:
        self.seeds: Seeds = []
        self.written = 0

    def keep(self, seeds: Seeds) -> None:
        self.seeds, self.written = seeds[:], self.written + 1

    def periods(self, hours: float = 24) -> Periods:
        draws = iter(range(1, 1000))
        return Periods(round(hours * HOUR * 1000), self.seeds, derive=lambda seed: bytearray(seed),
                       draw=lambda count: bytes([next(draws) % 256, self.written % 256]) * (count // 2), keep=self.keep)


class Narrow(io.BytesIO):
    """A log in memory with so much room for requests' records."""

    left = 0

    def room(self, *, own: bool) -> int:
        return 1 << 20 if own else self.left


def test_a_record_without_room_is_not_sealed(clock: Clock) -> None:
    """Its number is that of the next one, and no number is sealed twice under one key: not even a period begins."""
    store, out = Store(), Narrow()
    log = _log(out, store.periods())
    for _ in range(3):
        with pytest.raises(AuditError, match="full"):
            log.write("request.done", **FIELDS)
    assert 0 == store.written
    out.left = 1 << 20
    log.write("request.done", **FIELDS)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert list(range(len(records))) == [record["seq"] for record in records]
    assert ("request.done", 1) == (records[-1]["event"], store.written)


def _log(out: io.BytesIO, kept: Periods) -> AuditLog:
    log = AuditLog(out, strict=True, version=3)
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["acme"])
    log.begin(Chain(), Ed25519PrivateKey.generate())
    log.retain(kept)
    return log


def _hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt, info).derive(secret)


def by_the_specification(key: bytes, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a sealed record, from docs/formats/audit-log-3.md alone."""
    domain, seq = b"appliance/audit-record/v1\n", record["seq"].to_bytes(8, "big")
    own = _hkdf(key, bytes.fromhex(record["boot"]), domain + record["period"].to_bytes(8, "big") + seq)
    plain = AESGCM(own).decrypt(bytes(12), bytes.fromhex(record["sealed"]), b"".join([
        domain, record["event"].encode(), b"\n", seq]))
    assert len(plain) % 256 == 0
    found: dict[str, Any] = json.loads(plain)
    return found


def test_fields_are_sealed_by_the_specification(clock: Clock) -> None:
    """A request's record shows its event and place alone; by its key it is what was written."""
    out, store = io.BytesIO(), Store()
    log = _log(out, store.periods())
    log.write("request.done", **FIELDS)
    log.write("service.draining", in_flight=1)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    sealed = records[1]
    assert {"v", "seq", "boot", "epoch", "time", "time_source", "mono_ms", "prev", "event", "period",
            "sealed"} == set(sealed)
    assert (int(clock.wall), 1) == (sealed["period"], records[2]["in_flight"])
    (number, seed), = store.seeds
    assert FIELDS == by_the_specification(seed, sealed)
    assert FIELDS == unsealing.fields(unsealing.key_of(seed, sealed), sealed)
    assert number == sealed["period"]
    report = examine(out.getvalue().splitlines(keepends=True))
    assert (None, 1, []) == (report.bad, report.sealed, report.expired)


def test_keys_go_when_their_time_is_over(clock: Clock) -> None:
    """At any time records of the last 23 to 24 hours can be read, and no older one."""
    out, store = io.BytesIO(), Store()
    log = _log(out, store.periods())
    begun: list[int] = []
    for count in range(48 * 12):
        log.expire()
        log.write("request.done", **FIELDS)
        begun.append(int(clock.wall))
        if count % 29 == 0 or count == 48 * 12 - 1:
            numbers = {number for number, _ in store.seeds}
            assert 25 >= len(numbers)
            for line, when in zip((line for line in out.getvalue().splitlines() if b'"sealed"' in line), begun,
                                  strict=True):
                alive, age = json.loads(line)["period"] in numbers, clock.wall - when
                assert alive or age > 23 * HOUR - 300
                assert age < 24 * HOUR or not alive
        clock.pass_by(300)
    report = examine(out.getvalue().splitlines(keepends=True))
    assert (None, 48 * 12) == (report.bad, report.sealed)
    assert len(report.expired) == len(set(report.expired)) >= 23


def test_a_clock_that_goes_back_keeps_nothing(clock: Clock) -> None:
    """A host that sets its clock back, or stops it, while the appliance runs, does not delay the destruction; and a
    boot does not begin before the newest period."""
    store = Store()
    kept = store.periods()
    kept.seal(bytes(16), 1, "request.done", FIELDS)
    (number, _), = store.seeds
    clock.wall -= 1e6
    clock.mono += 25 * HOUR
    assert [number] == list(kept.expire())
    assert [] == store.seeds
    kept.seal(bytes(16), 2, "request.done", FIELDS)
    clock.wall = 0
    again = store.periods()
    assert store.seeds[0][0] == again.now()


def test_the_same_place_twice_has_another_key(clock: Clock) -> None:
    """A disk that is put back gives one number to two records, of two boots: never under one key."""
    store = Store()
    kept = store.periods()
    first = kept.seal(bytes(16), 7, "request.done", FIELDS)
    second = kept.seal(bytes([1]) + bytes(15), 7, "request.done", FIELDS)
    assert first["period"] == second["period"]
    assert first["sealed"] != second["sealed"]


@pytest.mark.parametrize("change", [
    {"seq": 3}, {"event": "request.refused"}, {"boot": "02" * 16}, {"period": 9}, {"sealed": "00" * 272}])
def test_a_sealed_record_opens_in_its_place_alone(change: dict[str, Any], clock: Clock) -> None:
    """Not under another number, event, boot or period."""
    store = Store()
    record: dict[str, Any] = {"v": 3, "boot": "01" * 16, "seq": 2, "event": "request.done"}
    record |= store.periods().seal(bytes.fromhex(record["boot"]), record["seq"], record["event"], FIELDS)
    key, other = store.seeds[0][1], record | change
    assert FIELDS == unsealing.fields(unsealing.key_of(key, record), record)
    with pytest.raises(NoteError, match="do not open"):
        unsealing.fields(unsealing.key_of(key, other), other)


def test_a_records_key_opens_this_record_alone(clock: Clock) -> None:
    """Not the next one of its boot and period, though one key of the period opens both."""
    out, store = io.BytesIO(), Store()
    log = _log(out, store.periods())
    for _ in range(3):
        log.write("request.done", **FIELDS)
    records = [json.loads(line) for line in out.getvalue().splitlines()][1:]
    (_, seed), = store.seeds
    keys = [unsealing.key_of(seed, each) for each in records]
    assert ([FIELDS] * 3, 3) == ([unsealing.fields(*each) for each in zip(keys, records, strict=True)], len(set(keys)))
    for key, record in itertools.product(keys, records):
        if keys.index(key) == records.index(record):
            continue
        with pytest.raises(NoteError, match="do not open"):
            unsealing.fields(key, record)


def test_a_record_that_is_sealed_in_part_is_refused(clock: Clock) -> None:
    """A line has sealed fields or its own."""
    out = io.BytesIO()
    log = _log(out, Store().periods())
    log.write("request.done", **FIELDS)
    record = json.loads(out.getvalue().splitlines()[1])
    for odd in ({**record, "tenant": "acme"}, {name: value for name, value in record.items() if name != "period"}):
        with pytest.raises(WrongRecordError, match="in part"):
            Reader().read(canonical(odd))


def test_a_disk_that_takes_no_seed_ends_the_log(clock: Clock) -> None:
    """No record is written whose key is not kept, and nothing after it."""
    def fails(seeds: Seeds) -> None:
        raise StateError("the disk is gone")

    out = io.BytesIO()
    log = _log(out, Periods(HOUR * 1000, [], derive=bytearray, draw=bytes, keep=fails))
    before = out.getvalue()
    for _ in range(2):
        with pytest.raises(AuditError, match="the disk is gone"):
            log.write("request.done", **FIELDS)
    with pytest.raises(AuditError, match="the disk is gone"):
        log.write("service.draining", in_flight=1)
    assert before == out.getvalue()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.write_bytes(bytes(6 << 20))
    return path


@contextmanager
def _boot(path: Path, hours: float) -> Iterator[AuditLog]:
    """A boot's log on a state disk, with a retention."""
    sink = StateSink()
    log = AuditLog(sink, strict=True, version=3)
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["acme"])
    chain = Chain()
    state = StateDisk(path, Secret(bytearray(SECRET)), heard=lambda line: chain.follow(line.rstrip(b"\n")))
    with closing(state):
        sink.attach(state)
        log.begin(chain, Ed25519PrivateKey.generate(), log=state.disk, epoch=state.epoch)
        audit_sink.retain(round(hours * HOUR * 1000), state, log)
        yield log
        log.close()


def test_a_disk_forgets(clock: Clock, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three boots with days between: seeds of what is over are in neither slot, by the specification's reader, and the
    command line opens what is left."""
    key_file = tmp_path / "state.key"
    key_file.write_text(SECRET.hex())
    key_file.chmod(0o600)
    seeds: list[str] = []
    for _ in range(3):
        with _boot(disk, 24) as log:
            log.write("request.done", **FIELDS)
        saved = json.loads(_saved(disk)[1])
        assert ("appliance/snapshot/v2", None, 1) == (saved["format"], saved["quotas"], len(saved["audit_periods"]))
        seeds += saved["audit_periods"].values()
        clock.pass_by(30 * HOUR)
    assert all(seeds[-1].encode() in each and seeds[0].encode() not in each for each in _saved(disk))
    lines, keys = tmp_path / "audit.jsonl", tmp_path / "keys.json"
    assert 0 == main(["state", str(disk), "--key", str(key_file), "--period-keys", str(keys)])
    lines.write_text(capsys.readouterr().out)
    assert 0 == main(["audit", "verify", str(lines)])
    assert "3 sealed records; destroyed are the keys of 2 periods" in capsys.readouterr().out
    assert 0 == main(["audit", "open", str(lines), "--period-keys", str(keys)])
    opened = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [False, False, True] == ["tenant" in each for each in opened if each["event"] == "request.done"]
    assert 1 == len(held.period_keys(keys))
    assert 0o600 == keys.stat().st_mode & 0o777


def _saved(path: Path) -> list[bytes]:
    """The snapshots in both slots, the older first."""
    data, size = path.read_bytes(), 1 << 20
    found = [slot(SECRET, data[at:at + size]) for at in (0, size)]
    return [each["saved"] for each in sorted((each for each in found if each), key=lambda each: int(each["counter"]))]


def test_a_cut_between_both_slots_is_made_up_for(clock: Clock, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where power goes after the first of the two, the next boot's slot takes the place of the other one."""
    with _boot(disk, 24) as log:
        log.write("request.done", **FIELDS)
    seed, = json.loads(_saved(disk)[1])["audit_periods"].values()
    clock.pass_by(30 * HOUR)
    whole, saves = StateDisk.save, 0

    def once(self: StateDisk, snapshot: bytes) -> None:
        nonlocal saves
        saves += seed.encode() not in snapshot
        if saves >= 2:
            raise StateError("power is gone")
        whole(self, snapshot)

    monkeypatch.setattr(StateDisk, "save", once)
    with pytest.raises((AuditError, StateError), match="power is gone"), _boot(disk, 24):
        pass
    monkeypatch.undo()
    assert [True, False] == [seed.encode() in each for each in _saved(disk)]
    with _boot(disk, 24):
        pass
    assert [False, False] == [seed.encode() in each for each in _saved(disk)]
    found = examine_disk(disk, Secret(bytearray(SECRET)))[2]
    assert examine([frame.payload for frame in found if frame.kind == 2]).bad is None
