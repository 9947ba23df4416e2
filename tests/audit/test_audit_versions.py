"""Version 3 beside version 2: its vectors, logs that an update goes on with, and what neither version allows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.audit.sink import open_chained
from appliance.auditor import bundle
from appliance.auditor.examine import Trust, examine
from appliance.auditor.records import Reader, WrongRecordError
from appliance.errors import AuditError
from appliance.transparency.note import NoteKey
from tests.support.log_by_spec import LogBySpec, path, record_key, root

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/audit-log-3-vectors.json").read_text())
LINES = [line.encode() for line in VECTORS["lines"]]
PERIOD, PERIOD_KEY = 1_772_355_600, bytes(range(32, 64))
REQUEST = "req-" + "0a" * 16
DONE = {"request": REQUEST, "endpoint": "/v1/completions", "status": 200, "tenant": "acme", "model": "demo"}


def _boot(log: LogBySpec, version: int, **asker: str) -> None:
    """A boot with a request, a change and a checkpoint."""
    log.begin(version)
    log.write("boot.start", version="0.1.0", platform="simulated", policy_sha384="ab" * 48)
    log.seal("request.done", PERIOD, PERIOD_KEY, **DONE)
    log.write("model.loaded", model="demo", sha256="cd" * 32, generation=2, **asker)
    log.checkpoint()


def _both() -> LogBySpec:
    log = LogBySpec()
    _boot(log, 2)
    _boot(log, 3, request=REQUEST, tenant="ops")
    return log


def test_the_vectors_by_plain_hashing() -> None:
    """Leaves, roots, signature, path and keys by the specification's own words."""
    leaves = [hashlib.sha256(b"\0" + line).digest() for line in LINES]
    assert VECTORS["leaves"] == [leaf.hex() for leaf in leaves]
    assert VECTORS["roots"] == {str(size): root(leaves[:size]).hex() for size in range(len(leaves) + 1)}
    log = LogBySpec()
    log.lines, log.leaves = LINES, leaves
    assert VECTORS["checkpoint"] == log.note
    Ed25519PublicKey.from_public_bytes(log.public).verify(log.private.sign(log.text.encode()), log.text.encode())
    entry, = VECTORS["bundle"]["records"]
    assert entry["path"] == [each.hex() for each in path(leaves, entry["index"])]
    for each in VECTORS["sealed"]:
        record = json.loads(LINES[each["seq"]])
        assert each["key"] == record_key(record["v"], PERIOD_KEY, bytes.fromhex(record["boot"]), PERIOD,
                                         each["seq"]).hex()
    assert {str(PERIOD): PERIOD_KEY.hex()} == VECTORS["period_keys"]


def test_the_vectors_by_the_auditors_tool() -> None:
    """The log of two versions is whole, its sealed records open, and the bundle's key opens its record."""
    log = LogBySpec()
    report = examine([line + b"\n" for line in LINES], trust=Trust(keys=(log.public,)))
    assert (None, [2, 3], 16, False) == (report.bad, [each.version for each in report.boots], report.proved,
                                         report.in_question)
    reader = Reader()
    records = [reader.read(line) for line in LINES]
    for each in VECTORS["sealed"]:
        opened = reader.opened(records[each["seq"]], {PERIOD: PERIOD_KEY})
        assert each["fields"] == {name: opened[name] for name in each["fields"]}
        assert opened == reader.opened_by(bytes.fromhex(each["key"]), records[each["seq"]])
    key = NoteKey(VECTORS["checkpoint"].partition("\n")[0], log.public)
    found = bundle.read(json.dumps(VECTORS["bundle"]).encode(), key, reader)
    assert {10: bytes.fromhex(VECTORS["bundle"]["records"][0]["key"])} == found.keys
    assert "tenant" in reader.opened_by(found.keys[10], found.records[10])


def test_a_log_of_before_is_gone_on_with(tmp_path: Path) -> None:
    """An update boots on the file of version 2: what stands there stays, and all of it is one log that verifies."""
    before, place = LogBySpec(), tmp_path / "audit.log"
    _boot(before, 2)
    place.touch(0o600)
    place.write_bytes(b"".join(before.data))
    for _ in range(2):
        chain = Chain()
        sink, repaired = open_chained(place, chain)
        log = AuditLog(sink, strict=True, version=3)
        log.begin(chain, before.private, repaired=repaired)
        log.write("service.stopped", requests=1, refused=0)
        log.close()
    lines = place.read_bytes().splitlines(keepends=True)
    assert before.data == lines[:len(before.data)]
    report = examine(lines, trust=Trust(keys=(before.public,)))
    assert (None, [2, 3, 3], len(lines) - 1, []) == (
        report.bad, [each.version for each in report.boots], report.proved, report.notes)


def _older_boot(log: LogBySpec) -> int:
    """An older appliance goes on behind a newer one."""
    _boot(log, 2)
    return len(log.lines) - 5


def _older_record(log: LogBySpec) -> int:
    """A record of version 2 within a boot of version 3."""
    log.version = 2
    log.write("service.stopped", requests=1, refused=0)
    return len(log.lines) - 1


def _newer_record(log: LogBySpec) -> int:
    """A record of version 3 within a boot of version 2."""
    log.__init__()  # type: ignore[misc]
    log.begin(2)
    log.version = 3
    log.write("service.stopped", requests=1, refused=0)
    return 1


def _unknown(log: LogBySpec) -> int:
    """A boot of a version that nobody knows yet."""
    log.begin(4)
    return len(log.lines) - 1


@pytest.mark.parametrize("wrong", [_older_boot, _older_record, _newer_record, _unknown])
def test_versions_go_forward_from_boot_to_boot(wrong: Callable[[LogBySpec], int]) -> None:
    """Neither a verifier nor the next boot takes another order, whoever signed it."""
    log = _both()
    at = wrong(log)
    report = examine(log.data)
    assert at == getattr(report.bad, "position", None), report
    chain = Chain()
    for line in log.lines[:at]:
        chain.follow(line)
    with pytest.raises(AuditError, match="does not follow"):
        chain.follow(log.lines[at])


@pytest.mark.parametrize(("version", "event", "fields"), [
    (2, "model.wiped", {"model": "demo", "request": REQUEST}),
    (2, "model.loaded", {"model": "demo", "sha256": "cd" * 32, "generation": 2, "tenant": "ops"}),
    (3, "model.wiped", {"model": "demo"}), (3, "model.wiped", {"request": REQUEST, "tenant": "ops"}),
    (3, "service.draining", {}), (3, "model.wiped", {"model": "demo", "request": "me", "tenant": "ops"})])
def test_each_version_has_its_own_schema(version: int, event: str, fields: dict[str, Any]) -> None:
    """Version 2 names nobody; version 3 has every field that its events must have, and says who asked."""
    log = LogBySpec()
    log.begin(version)
    log.write(event, **fields)
    with pytest.raises(WrongRecordError):
        Reader().read(log.lines[-1])


def test_a_record_of_version_2_that_lacks_a_field_is_still_taken() -> None:
    """Appliances before could write such: the log stays readable."""
    log = LogBySpec()
    log.begin(2)
    log.write("service.draining")
    assert examine(log.data).bad is None


def test_no_other_version_is_written() -> None:
    """Version 2 is for reading alone."""
    for version in (0, 2, 4):
        with pytest.raises(ValueError, match="not one that is written"):
            AuditLog(open_chained(None, Chain())[0], version=version)
