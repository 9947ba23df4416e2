"""The builder's release log: what is appended is read, what is altered or set back is refused; a client obeys it."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation.binding import Build
from appliance.attestation.case.measurements import FORMAT, Measurements
from appliance.cli.main import main
from appliance.client import reference
from appliance.errors import NoteError, PolicyError
from appliance.imaging.papers import releases as writing
from appliance.policy import load
from appliance.signed import releases
from appliance.transparency.note import Note, sign
from tests.support.policies import BASE

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
DAY = datetime(2026, 3, 1, 9, tzinfo=UTC)
ONE, TWO, POLICY = "1a" * 48, "2b" * 48, "3c" * 48


def read(folder: Path, held: bytes | None = None) -> releases.Releases:
    return releases.read((folder / "log.jsonl").read_bytes(), (folder / "checkpoint").read_bytes(), PUBLIC, held=held)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, a policy, and the first image revoked a day later."""
    path = tmp_path / "releases"
    writing.append(path, [("release.measurements", {"sha384": ONE, "version": "0.1.0"}),
                          ("release.policy", {"sha384": POLICY, "name": "acme-production"})], KEY, DAY)
    writing.append(path, [("release.measurements", {"sha384": TWO, "version": "0.1.1"}),
                          ("release.revoked", {"what": "measurements", "sha384": ONE})], KEY, DAY + timedelta(days=1))
    return path


def _root(hashes: list[bytes]) -> bytes:
    """The tree's root (RFC 6962, 2.1)."""
    if len(hashes) == 1:
        return hashes[0]
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _root(hashes[:middle]) + _root(hashes[middle:])).digest()


def test_the_files_are_what_the_format_says(folder: Path) -> None:
    """Lines, their chain, the tree and the note, from hashlib and the standard alone."""
    lines = (folder / "log.jsonl").read_bytes().splitlines()
    leaves: list[bytes] = []
    for number, line in enumerate(lines):
        record = json.loads(line)
        assert line == json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        assert (1, number, leaves[-1].hex() if leaves else None) == (record["v"], record["seq"], record["prev"])
        leaves.append(hashlib.sha256(b"\0" + line).digest())

    text, _, line = (folder / "checkpoint").read_text().partition("\n\n")
    origin, size, encoded = text.split("\n")
    assert (f"appliance/releases/{json.loads(lines[0])['log']}", 5) == (origin, int(size))
    assert _root(leaves) == base64.b64decode(encoded)
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(base64.b64decode(line.split()[2])[4:], f"{text}\n".encode())


def test_what_a_verifier_is_told(folder: Path) -> None:
    """Listed, revoked, unknown, and how old."""
    found, now = read(folder), DAY + timedelta(days=2)
    assert "holds" == found.finding(TWO, POLICY, now, None).outcome
    assert "the builder revoked the measurements" == found.finding(ONE, POLICY, now, None).detail
    assert "fails" == found.finding("4d" * 48, POLICY, now, None).outcome
    both = found.finding(ONE, POLICY, now + timedelta(days=30), timedelta(days=30)).detail
    assert both.startswith("the builder revoked the measurements; its newest record is of 2026-03-02")
    assert "holds" == found.finding(None, "4d" * 48, now, timedelta(days=1)).outcome
    old = found.finding(TWO, POLICY, now + timedelta(days=30), timedelta(days=30))
    assert ("fails", "its newest record is of 2026-03-02T09:00:00Z, older than 30 days, 0:00:00") == (
        old.outcome, old.detail)
    writing.append(folder, [("release.current", {})], KEY, now + timedelta(days=30))
    assert "holds" == read(folder).finding(TWO, POLICY, now + timedelta(days=30), timedelta(days=30)).outcome
    writing.append(folder, [("release.revoked", {"what": "policy", "sha384": POLICY})], KEY, now + timedelta(days=31))
    assert "the builder revoked the policy" == read(folder).finding(TWO, POLICY, DAY, None).detail


def test_no_altered_log_is_read(folder: Path) -> None:
    """Each line left out, put elsewhere, doubled or with another byte; each checkpoint with another byte."""
    log, head = (folder / "log.jsonl").read_bytes(), (folder / "checkpoint").read_bytes()
    lines = log.splitlines(keepends=True)
    odd = [b"".join(lines[:n] + lines[n + 1:]) for n in range(5)]
    odd += [b"".join([*lines[:n], lines[n], *lines[n:]]) for n in range(5)]
    odd += [b"".join([*lines[:n], lines[n + 1], lines[n], *lines[n + 2:]]) for n in range(4)]
    odd += [log[:n] + bytes((log[n] ^ 1,)) + log[n + 1:] for n in range(0, len(log), 7)]
    odd += [b"", log[:-1], log + b"\n", log + lines[4]]
    for altered in odd:
        with pytest.raises(NoteError):
            releases.read(altered, head, PUBLIC)
    signature = head.index("—".encode())
    for n in range(len(head) - 1):
        altered = head[:n] + bytes((head[n] ^ 1,)) + head[n + 1:]
        try:
            found = releases.read(log, altered, PUBLIC)
        except NoteError:
            continue
        assert n > signature  # a spelling that means the same
        assert found.head.size == 5
    with pytest.raises(NoteError, match="another builder"):
        releases.read(log, head, Ed25519PrivateKey.generate().public_key().public_bytes_raw())


@pytest.mark.parametrize(("number", "changed"), [
    (2, {"seq": 3}), (2, {"seq": 1}), (2, {"seq": "2"}), (2, {"prev": "00" * 32}), (2, {"prev": None}),
    (0, {"prev": "00" * 32}), (0, {"seq": 1}), (2, {"v": "appliance/releases/v2"}), (2, {"event": "releases.opened"}),
    (2, {"more": 1}), (2, {"time": "2026-02-30T09:00:00Z"}), (2, {"sha384": ONE[:-1]})])
def test_a_record_out_of_its_place_is_refused_though_it_is_signed(number: int, changed: dict[str, object], folder: Path
                                                                  ) -> None:
    """The builder's own checkpoint covers the altered lines: the records themselves must follow each other."""
    lines = (folder / "log.jsonl").read_bytes().splitlines()
    record = {**json.loads(lines[number]), **changed}
    lines[number] = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    origin = (folder / "checkpoint").read_text().partition("\n")[0]
    root = base64.b64encode(_root([hashlib.sha256(b"\0" + line).digest() for line in lines])).decode()
    text = f"{origin}\n{len(lines)}\n{root}\n"
    head = Note(text, (sign(text, origin, KEY),)).encode()
    with pytest.raises(NoteError, match=f"line {number} is not record {number}"):
        releases.read(b"".join(line + b"\n" for line in lines), head, PUBLIC)


def test_a_log_that_is_set_back_contradicts_what_is_held(folder: Path, tmp_path: Path) -> None:
    """The older state, and another history, against the newer checkpoint."""
    older = tmp_path / "older"
    older.mkdir()
    for name in ("log.jsonl", "checkpoint"):
        (older / name).write_bytes((folder / name).read_bytes())
    before = (folder / "checkpoint").read_bytes()
    writing.append(folder, [("release.revoked", {"what": "measurements", "sha384": TWO})], KEY, DAY + timedelta(days=3))
    assert 6 == read(folder, held=before).head.size
    with pytest.raises(NoteError, match="did not grow"):
        read(older, held=(folder / "checkpoint").read_bytes())
    writing.append(older, [("release.current", {})], KEY, DAY + timedelta(days=3))
    with pytest.raises(NoteError, match="did not grow"):
        read(older, held=(folder / "checkpoint").read_bytes())


def test_a_run_that_was_cut_off_is_made_up_for(folder: Path) -> None:
    """Lines that no checkpoint covers were never published."""
    with (folder / "log.jsonl").open("ab") as log:
        log.write(b'{"event":"release.cur')
    with pytest.raises(NoteError):
        read(folder)
    writing.append(folder, [("release.current", {})], KEY, DAY + timedelta(days=3))
    assert 6 == read(folder).head.size
    with pytest.raises(NoteError, match="older than the one before"):
        writing.append(folder, [("release.current", {})], KEY, DAY)


def test_the_command_line_and_a_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`image release` appends what files say; a verifier's reference refuses what is revoked, or too old."""
    key, policy, measured = tmp_path / "key.pem", tmp_path / "policy.hcl", tmp_path / "measurements.json"
    key.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    policy.write_text(BASE)
    known = Measurements(format=FORMAT, build=Build(version="0.1.0"), image={}, policy_sha384=None, sev_snp=(), tdx=(),
                         tpm=None)
    measured.write_bytes(known.to_json())
    log = tmp_path / "log"
    words = ["image", "release", str(log), "--key", str(key)]
    assert 0 == main([*words, "--measurements", str(measured), "--policy", str(policy), "--json"])
    assert 3 == json.loads(capsys.readouterr().out)["size"]
    options: reference.Options = {"builder_key": f"ed25519:{PUBLIC.hex()}", "releases": log,
                                  "max_release_age": timedelta(days=1)}
    now = datetime.now(UTC)

    def outcome(at: datetime = now) -> tuple[str, str]:
        found = reference.read(policy, None, options)
        full = reference.Reference(found.policy, reference.KnownImage(known), releases=found.releases,
                                   max_release_age=found.max_release_age)
        return next((each.outcome, each.detail) for each in full.findings(at) if each.rule == "release")

    assert ("holds", "the log has the policy") == (outcome()[0], outcome()[1].partition("; ")[2])
    assert "fails" == outcome(now + timedelta(days=2))[0]
    assert 0 == main(words)  # that it is current
    assert 0 == main([*words, "--revoke-policy", str(policy)])
    assert ("fails", "the builder revoked the policy") == outcome()
    assert load(policy).digest.hex() in (log / "log.jsonl").read_text()
    with pytest.raises(PolicyError, match="nothing says whose"):
        reference.read(policy, None, {"releases": log})
    with pytest.raises(PolicyError, match="there is none"):
        reference.read(policy, None, {"max_release_age": timedelta(days=1)})
