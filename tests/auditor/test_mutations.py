"""Alterations of a log, ten thousand in the soak: each is found, and the record that is named is the first that was
altered."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.auditor.examine import Trust, examine
from appliance.auditor.held import Anchor
from appliance.transparency import note
from appliance.transparency.note import COSIGNS, NoteKey
from tests.support import extent

ROUNDS = extent.examples(100, 1250)  # of each of the eight kinds
WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
WITNESS_KEY = NoteKey("w1", WITNESS.public_key().public_bytes_raw(), COSIGNS)


def made(boots: int = 3, each: int = 6, *, lasting: bool = False) -> tuple[list[bytes], list[Anchor]]:
    """A log of some boots, with checkpoints and cosignatures in it, and its head after every record as held outside."""
    out, anchors = io.BytesIO(), []
    out.close = lambda: None  # type: ignore[method-assign]
    key = Ed25519PrivateKey.generate()
    for boot in range(boots):
        chain = Chain()
        for line in out.getvalue().splitlines():
            chain.follow(line)
        log = AuditLog(out, version=3, strict=True)
        log.words.witnesses.admit(["w1"])
        log.begin(chain, key if lasting else Ed25519PrivateKey.generate())
        for number in range(each):
            log.write("service.stopped", requests=number, refused=boot)
            if number % 3 == 2 and (signed := log.checkpoint()) is not None:
                line = note.sign(signed.checkpoint.text, "w1", WITNESS, when=1_800_000_000 + number)
                log.write("audit.cosigned", witness="w1", size=signed.checkpoint.size,
                          cosigned_at=1_800_000_000 + number, signature=line.data[8:].hex())
            head = log.signed()
            anchors.append(Anchor(f"held at {head.checkpoint.size}", head.checkpoint, head.note))
        log.close()
        end = log.signed()
        anchors.append(Anchor(f"held at {end.checkpoint.size}", end.checkpoint, end.note))
    return out.getvalue().splitlines(keepends=True), anchors


LINES, ANCHORS = made()
OTHERS, _ = made()
RANDOM = random.Random(7)


def _delete(lines: list[bytes], at: int) -> int:
    del lines[at]
    return at


def _swap(lines: list[bytes], at: int) -> int:
    other = RANDOM.choice([place for place in range(len(lines)) if place != at])
    lines[at], lines[other] = lines[other], lines[at]
    return min(at, other)


def _alter(lines: list[bytes], at: int) -> int:
    """A field has another value of its type, in canonical spelling: checkpoints' and cosignatures' as well."""
    record = json.loads(lines[at])
    name = RANDOM.choice([name for name, value in record.items() if (
        isinstance(value, int) or (isinstance(value, str) and len(value) >= 32)) and name != "v"])
    value = record[name]
    place = RANDOM.randrange(len(value)) if isinstance(value, str) else 0
    record[name] = value + 1 if isinstance(value, int) else (
        value[:place] + ("0" if value[place] != "0" else "1") + value[place + 1:])
    lines[at] = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return at


def _turn_a_bit(lines: list[bytes], at: int) -> int:
    data = bytearray(lines[at])
    data[RANDOM.randrange(len(data))] ^= 1 << RANDOM.randrange(8)
    lines[at:] = b"".join([bytes(data), *lines[at + 1:]]).splitlines(keepends=True)
    return at


def _insert(lines: list[bytes], at: int) -> int:
    lines.insert(at, RANDOM.choice(OTHERS))
    return at


def _repeat(lines: list[bytes], at: int) -> int:
    lines.insert(at, lines[at])
    return at + 1


def _truncate(lines: list[bytes], at: int) -> int:
    del lines[at:]
    return at


def _splice(lines: list[bytes], at: int) -> int:
    end = RANDOM.randrange(at, len(lines)) + 1
    lines[at:end] = OTHERS[at:end]
    return at


@pytest.mark.parametrize("mutation", [_delete, _swap, _alter, _turn_a_bit, _insert, _repeat, _truncate, _splice])
def test_the_first_altered_record_is_named(mutation: Callable[[list[bytes], int], int]) -> None:
    """Against the last head that is held outside; cosignatures are checked by the witness's key."""
    trust = Trust(witnesses=(WITNESS_KEY,))
    assert examine(LINES, anchors=ANCHORS, trust=trust).bad is None
    for _ in range(ROUNDS):
        lines = LINES[:]
        expected = mutation(lines, RANDOM.randrange(len(lines)))
        bad = examine(lines, anchors=[ANCHORS[-1]], trust=trust).bad
        assert bad is not None
        assert expected == bad.position, bad


def test_any_later_head_finds_a_shorter_log() -> None:
    """Each head that is held outside names the first record that is gone."""
    for anchor in ANCHORS:
        for size in range(anchor.checkpoint.size):
            bad = examine(LINES[:size], anchors=[anchor]).bad
            assert bad is not None
            assert size == bad.position
        assert examine(LINES[:anchor.checkpoint.size], anchors=[anchor]).bad is None


def test_without_anything_held_the_last_checkpoint_is_the_logs_own_word() -> None:
    """The report says up to where the log signs itself, also where it was cut between two checkpoints, and nothing is
    proved; by the keys of its boots, so much is."""
    keys = tuple(bytes.fromhex(json.loads(line)["audit_key_ed25519"]) for line in LINES if b'"log.opened"' in line)
    places = [number for number, line in enumerate(LINES) if b'"audit.checkpoint"' in line]
    for size in range(len(LINES) + 1):
        report = examine(LINES[:size])
        assert report.bad is None
        expected = max((place for place in places if place < size), default=0)
        assert (0, expected) == (report.proved, report.signed)
        assert expected == examine(LINES[:size], trust=Trust(keys=keys)).proved


def test_a_log_that_was_set_back_contradicts_what_is_held() -> None:
    """An appliance that goes on from an older disk signs a second history: the range of records is named."""
    lines, anchors = made(2, lasting=True)
    for held in anchors:
        out = io.BytesIO(b"".join(lines[:5]))
        out.seek(0, io.SEEK_END)
        chain = Chain()
        for line in lines[:5]:
            chain.follow(line[:-1])
        log = AuditLog(out, version=3)
        log.begin(chain, Ed25519PrivateKey.generate())
        for _ in range(30):
            log.write("service.stopped", requests=1, refused=1)
        log.checkpoint()
        bad = examine(out.getvalue().splitlines(keepends=True), anchors=[held]).bad
        assert (bad is not None) == (held.checkpoint.size > 5)
        if bad is not None:
            assert bad.since <= 5 <= bad.until
