"""The chain: vectors of version 2 by another implementation, records of every event, torn writes, full disks."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from appliance.audit.chain import Chain
from appliance.audit.digests import Salts
from appliance.audit.events import ENVELOPE_2, RETAINED, Vocabularies, schema
from appliance.audit.log import AuditLog
from appliance.audit.sink import open_chained
from appliance.auditor.examine import Trust, examine
from appliance.errors import AuditError
from tests.audit.test_audit_log import DIGEST32, GOOD
from tests.support import extent

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/audit-log-2-vectors.json").read_text())
ASKER = {"request": "req-" + "0a" * 16, "tenant": "acme"}
PROVED = {"platform": "sev-snp", "policy_sha384": "ab" * 48, "nonce": DIGEST32}
MORE: dict[str, dict[str, Any]] = {
    "log.opened": {"log": "0b" * 16, "epoch": 1, "version": "0.1.0", "audit_key_ed25519": DIGEST32,
                   "repaired_bytes": 0, "unchained": 0},
    "operator.set": {"option": "listen_port"},
    "tenants.loaded": {"tenants": 2, "list_version": 7},
    "policy.approved": {"approver": "security"},
    "key.released": {"use": "model", "provider": "broker", "model": "demo"},
    "request.done": {"cached_tokens": 64, "request_digest": DIGEST32, "answer_digest": DIGEST32, "receipt": True,
                     "detail": "ab" * 112},
    "request.refused": {"request_digest": DIGEST32, "answer_digest": DIGEST32},
    "request.ended": {"request": "req-" + "0a" * 16, "endpoint": "/v1/completions", "tenant": "acme",
                      "duration_us": 8_000_000, "request_digest": DIGEST32, "answer_digest": DIGEST32,
                      "outcome": "ab" * 688},
    "requests.counted": {"late_passes": {"demo": 2}},
    "tenants.replaced": {"tenants": 2, "list_version": 8, "revoked": 1, "generation": 2, **ASKER},
    "model.loaded": {"model": "demo", "sha256": DIGEST32, "generation": 2, **ASKER},
    "model.unloaded": {"model": "demo", "generation": 3, **ASKER},
    "model.wiped": {"model": "demo", **ASKER},
    "sessions.opened": {"models": 1},
    "sessions.failed": {"models": 1},
    "model.refused": {"model": "demo", "code": "boot-failed", **ASKER},
    "audit.checkpoint": {"size": 3, "root": DIGEST32, "signature": "ab" * 64},
    "audit.cosigned": {"witness": "w1", "size": 3, "cosigned_at": 1, "signature": "ab" * 64},
    "audit.timestamped": {"size": 3, "token": "ab" * 2000},
    "audit.expired": {"period": 1_800_000_000},
    "rules.loaded": {"rules": 2, "rules_sha256": DIGEST32},
    "rules.refused": {"code": "boot-failed"},
    "release.granted": {"resource": "default/key/demo", "key_version": 4, "release_spki_sha256": DIGEST32, **PROVED},
    "release.denied": {"resource": "default/key/demo", "failed": {"measurement": 1}, **PROVED},
    "releases.counted": {"seconds": 60, "refused": {"boot-failed": 2}},
}
SEALED = {"period": 1_800_000_000, "sealed": "ab" * 528}  # in place of a record's own fields: test_audit_periods
EXAMPLES = {event: {**GOOD.get(event, {}), **MORE.get(event, {}), **(SEALED if event in RETAINED else {})}
            for event in (*GOOD, *MORE)}


def named_log(sink: Any, version: int = 4) -> AuditLog:
    """A log that knows the names of the examples."""
    log = AuditLog(sink, strict=True, version=version)
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["acme"])
    log.words.listeners.admit(["api"])
    log.words.parameters.admit(["messages"])
    log.words.approvers.admit(["security"])
    log.words.witnesses.admit(["w1"])
    log.words.resources.admit(["default/key/demo"])
    log.admit_codes(["boot-failed"])
    return log


def test_vectors_by_plain_hashing() -> None:
    """Leaves, chain, roots and signatures of the specification's example, from hashlib and the standard alone."""
    lines, leaves = VECTORS["lines"], []
    for number, line in enumerate(lines):
        record = json.loads(line)
        assert line == json.dumps(record, sort_keys=True, separators=(",", ":"))
        assert (number, leaves[-1] if leaves else None) == (record["seq"], record["prev"])
        leaves.append(hashlib.sha256(b"\0" + line.encode()).hexdigest())

    def root(hashes: list[bytes]) -> bytes:
        if len(hashes) < 2:
            return hashes[0] if hashes else hashlib.sha256(b"").digest()
        middle = 1 << (len(hashes) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + root(hashes[:middle]) + root(hashes[middle:])).digest()

    assert leaves == VECTORS["leaves"]
    assert VECTORS["roots"] == {str(size): root([bytes.fromhex(leaf) for leaf in leaves[:size]]).hex()
                                for size in range(len(leaves) + 1)}
    text, _, line = VECTORS["checkpoint"].partition("\n\n")
    origin, size, encoded = text.split("\n")
    assert VECTORS["roots"][size] == base64.b64decode(encoded).hex()
    signed = base64.b64decode(line.split()[2])
    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["audit_key_seed"])).public_key()
    assert hashlib.sha256(f"{origin}\n".encode() + b"\1" + public.public_bytes_raw()).digest()[:4] == signed[:4]
    Ed25519PublicKey.from_public_bytes(public.public_bytes_raw()).verify(signed[4:], f"{text}\n".encode())


def test_the_vectors_verify() -> None:
    """By the tool that auditors use."""
    seed = bytes.fromhex(VECTORS["audit_key_seed"])
    trust = Trust(keys=(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw(),))
    report = examine((line.encode() + b"\n" for line in VECTORS["lines"]), trust=trust)
    assert (None, 2, 13, False) == (report.bad, len(report.boots), report.proved, report.in_question)


def test_every_event_has_an_example() -> None:
    """The examples cover the whole schema of the newest version that is written."""
    found = {event: {name.rstrip("?") for name in fields} for event, fields in schema(Vocabularies(), 4).items()}
    assert found == {event: set(fields) for event, fields in EXAMPLES.items()}


@pytest.mark.parametrize("event", sorted(set(EXAMPLES) - {"log.opened"}))
def test_records_are_written_whole(event: str) -> None:
    """Each event with all of its own fields, the envelope, and the leaf of the record before."""
    out, fields = io.BytesIO(), {**GOOD.get(event, {}), **MORE.get(event, {})}
    log = named_log(out)
    log.write("service.draining", in_flight=1)  # it waits until the log begins
    log.begin(Chain(), Ed25519PrivateKey.generate())
    log.write(event, **fields)
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert ["log.opened", "service.draining", event] == [each["event"] for each in (first, second, third)]
    assert set(ENVELOPE_2) | set(fields) == set(third)
    assert hashlib.sha256(b"\0" + out.getvalue().splitlines()[1]).hexdigest() == third["prev"]
    assert (0, 1, 2) == (first["seq"], second["seq"], third["seq"])


def _boot(path: Path) -> None:
    chain = Chain()
    sink, repaired = open_chained(path, chain)
    log = named_log(sink)
    log.begin(chain, Ed25519PrivateKey.generate(), repaired=repaired)
    for number in range(3):
        log.write("service.stopped", requests=number, refused=0)
    log.close()


def test_a_cut_at_every_byte_is_repaired_and_told(tmp_path: Path) -> None:
    """At most the record that was being written is gone, nothing before it is lost, and the log goes on. (Outside of
    the soak: at every end of a line, around it, and at a hundred places more.)"""
    path = tmp_path / "audit.log"
    _boot(path)
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole, 1) if byte == ord("\n")]
    around = {end + more for end in ends for more in (-2, -1, 0, 1) if end + more <= len(whole)}
    for size in sorted({*extent.some(range(len(whole) + 1), 100), *around}):
        path.write_bytes(whole[:size])
        _boot(path)
        kept = whole[:size].rpartition(b"\n")[0].splitlines()
        assert path.read_bytes().splitlines()[:len(kept)] == kept
        report = examine(path.read_bytes().splitlines(keepends=True))
        assert report.bad is None
        assert size - sum(len(line) + 1 for line in kept) == report.boots[-1].repaired_bytes
    path.write_bytes(whole + bytes(100))  # blocks that the file system had given, and nobody had written
    _boot(path)
    assert 100 == examine(path.read_bytes().splitlines(keepends=True)).boots[-1].repaired_bytes


@pytest.mark.parametrize("alter", [
    lambda lines: lines[:1] + lines[2:], lambda lines: [lines[1], lines[0], *lines[2:]],
    lambda lines: [lines[0], b"nothing\n", *lines[1:]],
    lambda lines: [*lines[:2], lines[2].replace(b"stopped", b"dropped"), *lines[3:]],
    lambda lines: [lines[0], lines[1].replace(b'"requests":0', b'"requests":9'), *lines[2:]]])
def test_a_file_that_was_altered_stops_the_boot(tmp_path: Path, alter: Any) -> None:
    """It is not repaired: somebody altered what was whole."""
    path = tmp_path / "audit.log"
    _boot(path)
    path.write_bytes(b"".join(alter(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with pytest.raises(AuditError) as caught:
        _boot(path)
    assert ("audit-altered", before) == (caught.value.code, path.read_bytes())


def test_records_of_version_1_stay_before_the_log(tmp_path: Path) -> None:
    """A file that schema 1 began is gone on with; its records are counted, and no part of the chain."""
    path = tmp_path / "audit.log"
    path.touch(0o600)
    with path.open("ab", buffering=0) as file:
        log = AuditLog(file)
        log.write("service.draining", in_flight=1)
        log.write("service.draining", in_flight=1)
    _boot(path)
    _boot(path)
    report = examine(path.read_bytes().splitlines(keepends=True))
    assert (None, 2, 2) == (report.bad, report.unchained, len(report.boots))
    lines = path.read_bytes().splitlines(keepends=True)
    assert 0 == getattr(examine(lines[1:]).bad, "position", None)


def test_a_full_disk_stops_everything() -> None:
    """Nothing goes on unrecorded, and what was not written is no part of the chain."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        log = named_log(full)
        with pytest.raises(AuditError, match="No space left"):
            log.begin(Chain(), Ed25519PrivateKey.generate())
        with pytest.raises(AuditError, match="No space left"):
            log.write("service.draining", in_flight=1)
        assert log.chain is not None
        assert 0 == log.chain.tree.end


def test_a_flush_that_fails_stops_everything(tmp_path: Path) -> None:
    """A disk that loses what it took is no log's."""
    path = tmp_path / "audit.log"
    chain = Chain()
    sink, _ = open_chained(path, chain)
    log = named_log(sink)
    log.begin(chain, Ed25519PrivateKey.generate())
    reader, writer = os.pipe()  # which takes no flush; the sink keeps its number, so that it closes nobody else's
    os.dup2(writer, sink.fileno())  # type: ignore[attr-defined]
    os.close(reader)
    os.close(writer)
    with pytest.raises(AuditError):
        log.flush()
    with pytest.raises(AuditError):
        log.write("service.draining", in_flight=1)


def test_equal_texts_share_no_digest() -> None:
    """Of two requests, of one request's parts, and of two boots."""
    salts, found = Salts(), set()
    for keys in (salts, Salts()):
        for request_id in ("req-1", "req-2"):
            digests = keys.of(request_id)
            digests.read(b"the same")
            digests.sent(b"the same")
            found |= {digests.request, digests.answer, digests.tokens((1, 2), (3,)), *digests.salts.values()}
    assert 4 * 7 == len(found)
    assert salts.of("req-1").salts == salts.of("req-1").salts


def test_a_log_without_a_boot_signs_nothing() -> None:
    """A chain that was only read has no key."""
    with pytest.raises(AuditError, match="no boot has begun"):
        Chain().signed()
