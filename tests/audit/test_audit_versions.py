"""The chained versions beside each other: vectors, logs that an update goes on with, and what no version allows."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from appliance.audit.chain import Chain
from appliance.audit.events import RETAINED, Schema, Vocabularies, additions, of_version_3, of_version_4, schema
from appliance.audit.log import AuditLog
from appliance.audit.record import kind_of
from appliance.audit.sink import open_chained
from appliance.auditor import bundle
from appliance.auditor.examine import Trust, examine
from appliance.auditor.records import Reader, WrongRecordError
from appliance.boot.auditing import version_for
from appliance.errors import AuditError
from appliance.policy import load
from appliance.transparency.note import NoteKey
from tests.audit.test_audit_chain import EXAMPLES, SEALED, named_log
from tests.audit.test_audit_log import described
from tests.support.log_by_spec import LogBySpec, path, record_key, root

ROOT, RELEASE = Path(__file__).parents[2], "v0.1.0"
VECTORS = json.loads((ROOT / "docs/formats/audit-log-3-vectors.json").read_text())
LINES = [line.encode() for line in VECTORS["lines"]]
NEWEST = json.loads((ROOT / "docs/formats/audit-log-4-vectors.json").read_text())
PERIOD, PERIOD_KEY = 1_772_355_600, bytes(range(32, 64))
REQUEST = "req-" + "0a" * 16
DONE = {"request": REQUEST, "endpoint": "/v1/completions", "status": 200, "tenant": "acme", "model": "demo"}
ENDED = {"request": REQUEST, "endpoint": "/v1/completions", "tenant": "acme", "duration_us": 8_000_000,
         "request_digest": "12" * 32, "answer_digest": "34" * 32}


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
    log.begin(5)
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
    (3, "service.draining", {}), (3, "model.wiped", {"model": "demo", "request": "me", "tenant": "ops"}),
    (3, "requests.counted", {"seconds": 60, "late_passes": {"demo": 1}}), (3, "request.ended", ENDED),
    (3, "boot.start", {"version": "0.2.0", "platform": "aws-nitrotpm", "policy_sha384": "ab" * 48}),
    (3, "rules.refused", {"code": "session"}), (4, "rules.refused", {}), (4, "service.draining", {}),
    (4, "request.ended", {**ENDED, "model": "demo"}), (4, "requests.counted", {"seconds": 60, "late_passes": 1})])
def test_each_version_has_its_own_schema(version: int, event: str, fields: dict[str, Any]) -> None:
    """Version 2 names nobody. Later ones have every field that their events must have, and say who asked. Version 3
    has what 0.1.0 knew."""
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
    for version in (0, 2, 5):
        with pytest.raises(ValueError, match="not one that is written"):
            AuditLog(open_chained(None, Chain())[0], version=version)


def test_the_vectors_of_version_4() -> None:
    """By plain hashing, and by the auditor's tool: a log that version 3 began, with each event that version 4 adds."""
    lines = [line.encode() for line in NEWEST["lines"]]
    leaves = [hashlib.sha256(b"\0" + line).digest() for line in lines]
    assert NEWEST["leaves"] == [leaf.hex() for leaf in leaves]
    assert NEWEST["roots"] == {str(size): root(leaves[:size]).hex() for size in range(len(leaves) + 1)}
    log = LogBySpec()
    log.lines, log.leaves = lines, leaves
    assert NEWEST["checkpoint"] == log.note
    report = examine(log.data, trust=Trust(keys=(log.public,)))
    assert (None, [3, 4], len(lines) - 1, False) == (
        report.bad, [each.version for each in report.boots], report.proved, report.in_question)
    reader = Reader()
    records = [reader.read(line) for line in lines]
    assert set(of_version_4(Vocabularies())) <= {each.event for each in records}
    [sealed] = NEWEST["sealed"]
    record = records[sealed["seq"]]
    key = record_key(4, PERIOD_KEY, bytes.fromhex(record.fields["boot"]), PERIOD, sealed["seq"])
    assert sealed["key"] == key.hex()
    for opened in (reader.opened(record, {PERIOD: PERIOD_KEY}), reader.opened_by(key, record)):
        assert sealed["fields"] == {name: opened[name] for name in sealed["fields"]}


@pytest.mark.parametrize(("before", "asked", "written"), [(2, 3, 3), (2, 4, 4), (3, 3, 3), (3, 4, 4), (4, 3, 4)])
def test_a_log_goes_on_in_the_later_version(before: int, asked: int, written: int, tmp_path: Path) -> None:
    """Also under a policy that needs none of its records, and those that waited have it, too."""
    log, place = LogBySpec(), tmp_path / "audit.log"
    _boot(log, before, **({"request": REQUEST} if before > 2 else {}))
    place.touch(0o600)
    place.write_bytes(b"".join(log.data))
    chain = Chain()
    sink, repaired = open_chained(place, chain)
    going = AuditLog(sink, strict=True, version=asked)
    going.write("service.draining", in_flight=1)
    going.begin(chain, log.private, repaired=repaired)
    going.close()
    lines = place.read_bytes().splitlines(keepends=True)
    report = examine(lines, trust=Trust(keys=(log.public,)))
    assert (None, [before, written]) == (report.bad, [each.version for each in report.boots])
    assert {written} == {json.loads(line)["v"] for line in lines[len(log.data):]}


@pytest.mark.parametrize(("more", "platforms", "version"), [
    ("", ("simulated",), 3), ("schema 1", ("simulated",), 1), ('audit { outcomes = "hidden" }', ("simulated",), 4),
    ("cadence", ("simulated",), 4), ("", ("aws-nitrotpm", "tpm"), 4)])
def test_the_policy_decides_the_version(more: str, platforms: tuple[str, ...], version: int) -> None:
    """The lowest that has all records that may come."""
    policy = load(ROOT / "examples/privacy/open.hcl").policy
    strict = load(ROOT / "examples/privacy/strict.hcl").policy
    changed = policy.model_copy(update={"tee": policy.tee.model_copy(update={"platforms": platforms})})
    if "outcomes" in more:
        changed = changed.model_copy(update={"audit": strict.audit})
    if more == "cadence":
        changed = changed.model_copy(update={"privacy": strict.privacy})
    if more == "schema 1":
        changed = policy.model_copy(update={"appliance": policy.appliance.model_copy(update={"schema_version": 1})})
    assert version == version_for(changed)


def _examples(version: int) -> dict[str, dict[str, Any]]:
    """Each event of a version with the fields that it has there, but for those of the chain itself."""
    known = schema(Vocabularies(), version)
    own = ("log.opened", "audit.checkpoint", "audit.cosigned", "audit.timestamped")
    return {event: {name: value for name, value in fields.items()
                    if kind_of(name, known[event]) and (event not in RETAINED or name not in SEALED)}
            for event, fields in EXAMPLES.items() if event in known and event not in own}


def _tagged(folder: Path) -> Path:
    """The code and the formats of the last release."""
    done = subprocess.run(["git", "-C", ROOT, "archive", RELEASE, "appliance", "docs/formats"], capture_output=True,
                          check=False)
    if done.returncode:  # a checkout need not have tags
        pytest.skip(f"the tag {RELEASE}: git fetch --tags")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


RELEASED: dict[str, tuple[Callable[[Vocabularies], Schema], str]] = {  # with the SHA-256 of the release's rows
    "audit-log.md": (schema, "fe3b71801557d377eda5d7eb1e6d17365395deab6c7d5958aed0225bfdf42e75"),
    "audit-log-2.md": (additions, "9d146f00585284333cad503afba5b88484dd604c323a525a9063b70b9d05b0c1"),
    "audit-log-3.md": (of_version_3, "7cebd98c5ebba55053d1164932df9123feaba85fcc8a981eb3d8a22aaa6e5d28")}


def _digest(rows: list[tuple[str, str, str]]) -> str:
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()


@pytest.mark.parametrize("page", RELEASED)
def test_a_released_table_stays(page: str) -> None:
    """Events, fields and words of closed lists are those that the release had."""
    more, released = RELEASED[page]
    assert released == _digest([(event, name, described(kind)) for event, fields in more(Vocabularies()).items()
                                for name, kind in fields.items()])


@pytest.mark.parametrize("page", RELEASED)
def test_the_digests_are_of_the_releases_pages(page: str, tmp_path: Path) -> None:
    """Where the checkout has the tag."""
    text = (_tagged(tmp_path) / "docs/formats" / page).read_text()
    assert RELEASED[page][1] == _digest(re.findall(r"^\| `([a-z.]+)` \| `([a-z0-9_?]+)` \| (.+) \|$", text,
                                                   re.MULTILINE))


@pytest.mark.parametrize(("version", "code"), [(3, 0), (4, 1)])
def test_the_last_release_judges_what_is_written_now(version: int, code: int, tmp_path: Path) -> None:
    """Its auditor's client finds a log of version 3 whole, with each event of that version, and refuses version 4."""
    out = tmp_path / "audit.log"
    chain, key = Chain(), Ed25519PrivateKey.generate()
    log = named_log(open_chained(out, chain)[0], version)
    log.begin(chain, key)
    for event, fields in _examples(version).items():
        log.write(event, **fields)
    log.close()
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(_tagged(tmp_path / 'tree'))!r})\n"
         "from appliance.cli.main import main\nsys.exit(main(sys.argv[1:]))", "audit", "verify", str(out), "--key",
         f"ed25519:{key.public_key().public_bytes_raw().hex()}"], capture_output=True, text=True, check=False, cwd="/")
    assert code == done.returncode, done.stdout + done.stderr
    assert examine(out.read_bytes().splitlines(keepends=True)).bad is None
