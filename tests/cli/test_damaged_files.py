"""Damaged files of every kind that a verb reads: an error with its exit code, never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.auditor import bundle
from appliance.auditor.pack import gather, judge
from appliance.auditor.records import Reader
from appliance.auditor.unsealing import KEYS_FORMAT
from appliance.cli.main import main
from appliance.keys.providers import Secret
from appliance.state.disk import StateDisk
from appliance.state.frames import MIN_DISK_BYTES
from appliance.transparency import reading
from tests.support import extent, packs

CODES = range(6)  # docs/reference/verify.md has the most of them
OTHERS = [
    b"", b"\n", b"[]", b"{}", b"null", b"1", b'"x"', b"[1]", b'{"a":1}', b"\xff\xfe", b"\0" * 100, b"[" * 100_000,
    b'{"a":' * 50_000, b"1" * 5000, b"1e999", b'"\\ud800"', b'{"a":1,"a":1}', b"\xef\xbb\xbf{}", b"{" + b" " * 100,
    "٢٠٢٦\n".encode(), b"-----BEGIN PRIVATE KEY-----\n", b"GGUF" + bytes(60),
    b'{"statement":[]}', b'{"statement":{"audit_key_ed25519":1,"build":[1]}}', b'{"statement":{"build":1}}',
    b'{"checkpoint":', b'{"checkpoint":1}', b'{"checkpoint":"x"}', b'{"checkpoint":"\\ud800\\n\\n"}', b'{"envelope":1}',
    b'{"envelope":{"signatures":[{}]}}', b'{"receipt":[],"id":1}']


@dataclass(frozen=True)
class Subject:
    """A file. `light`: the command that reads it is quick enough for many tries."""

    path: Path
    light: bool

    def damaged(self, seed: int) -> Iterator[bytes]:
        """The file cut, with bytes turned, with a piece twice, and other files in its place."""
        data, rand = self.path.read_bytes(), random.Random(seed)
        tries = extent.examples(16, 40) if self.light else extent.examples(4, 6)
        yield from OTHERS[::1 if self.light else 5]
        for place in sorted(rand.randrange(len(data)) for _ in range(tries)):
            yield data[:place]
        for _ in range(2 * tries):
            made = bytearray(data)
            for _ in range(rand.choice((1, 1, 1, 4))):
                made[rand.randrange(len(made))] = rand.choice((0, 0x22, 0x5B, 0x7B, 0x39, 0xFF, rand.randrange(256)))
            yield bytes(made)
        for _ in range(tries):
            begin, end = sorted(rand.randrange(len(data)) for _ in range(2))
            yield data[:end] + data[begin:]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> packs.Papers:
    """A deployment's papers, and beside them files that auditors and operators have."""
    found = packs.deployment(tmp_path_factory.mktemp("papers"), requests=8)
    at = found.folder
    extract = json.loads((at / "extract.json").read_bytes())
    (at / "bundle.json").write_text(json.dumps(extract, sort_keys=True, separators=(",", ":")))  # as `export` prints it
    records = [Reader().read(line[:-1]) for line in found.lines]
    sealed = next(each.seq for each in records if each.fields.get("period") in dict(found.seeds))
    (at / "keyed.json").write_text(json.dumps(bundle.export(
        records, [sealed], reading.note((at / "held.txt").read_bytes()), dict(found.seeds)), sort_keys=True,
        separators=(",", ":")))
    (at / "pack.zip").write_bytes(judge.written(gather.members(found.files), found.given)[0])
    (at / "periods.json").write_text(json.dumps({"format": KEYS_FORMAT, "log": "00" * 16, "periods": {
        str(number): key.hex() for number, key in found.seeds}}))
    (at / "auditor.pem").write_bytes(X25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (at / "builder.pub").write_text(packs.public(packs.BUILDER))
    with (at / "state.img").open("wb") as disk:
        disk.truncate(MIN_DISK_BYTES)
    StateDisk(at / "state.img", Secret(bytearray(range(32)))).close()
    (at / "state.key").write_text(bytes(range(32)).hex())
    (at / "state.key").chmod(0o600)
    return found


KEY = packs.AUDIT.public_key().public_bytes_raw().hex()
LOG, BUNDLE, HELD, ANSWER = "audit.jsonl", "bundle.json", "held.txt", "answer-0.json"
# name of a subject -> its file, and the command line, where {} is the file and @x the file x of the papers
COMMANDS: dict[str, tuple[str, str]] = {
    "log": (LOG, "audit verify {} --held @held.txt --key KEY"),
    "log, exported": (LOG, "audit export {} --record 1"), "log, proved": (LOG, "audit prove {} --old 3"),
    "log, opened": (LOG, "audit open {} --period-keys @periods.json"),
    "log, detailed": (LOG, "audit detail {} --auditor-key @auditor.pem --period-keys @periods.json"),
    "bundle": (BUNDLE, "audit verify {} --key KEY"), "bundle, as JSON": (BUNDLE, "audit verify {} --key KEY --json"),
    "bundle with a key": ("keyed.json", "audit open {} --key KEY"),
    "checkpoint": (HELD, "audit verify @audit.jsonl --held {}"),
    "checkpoint of an export": (HELD, "audit export @audit.jsonl --record 1 --held {}"),
    "receipt as a checkpoint": (ANSWER, "audit verify @audit.jsonl --held {}"),
    "receipt": (ANSWER, "receipt verify {} --key KEY"),
    "receipt for an auditor": (ANSWER, "receipt verify {} --key KEY --auditor-key @auditor.pem"),
    "receipt's evidence": ("evidence.json", "receipt verify @answer-0.json --evidence {}"),
    "receipt, replayed": (ANSWER, "receipt replay {} --key KEY --model @none.gguf"),
    "keys of periods": ("periods.json", "audit open @audit.jsonl --period-keys {}"),
    "auditor's key": ("auditor.pem", "audit detail @audit.jsonl --auditor-key {}"),
    "pack": ("pack.zip", "audit pack verify {}"),
    "checkpoint beside a pack": (HELD, "audit pack verify @pack.zip --held {}"),
    "builder's key": ("builder.pub", "audit pack verify @pack.zip --builder-key {}"),
    "evidence": ("evidence.json", "evidence {}"),
    "approvals": ("deployment.hcl.approvals", "audit pack -o @made.zip --approvals {}"),
    "log of a pack": (LOG, "audit pack -o @made.zip --log {}"),
    "bundle of a pack": (BUNDLE, "audit pack -o @made.zip --log @audit.jsonl --extract {}"),
    "health of a pack": ("health.json", "audit pack -o @made.zip --policy @deployment.hcl --health {}"),
    "bill of materials of a pack": ("sbom.cdx.json", "audit pack -o @made.zip --sbom {} --provenance "
                                    "@provenance.intoto.jsonl"),
    "provenance of a pack": ("provenance.intoto.jsonl", "audit pack -o @made.zip --sbom @sbom.cdx.json --provenance {} "
                             "--builder-key @builder.pub"),
    "state disk": ("state.img", "state {} --key @state.key"),
    "state disk's key": ("state.key", "state @state.img --key {}"),
    "measurements": ("measurements.json", "verify @evidence.json --policy @deployment.hcl --measurements {} "
                     "--measurements-unsigned"),
    "evidence for a verdict": ("evidence.json", "verify {} --policy @deployment.hcl"),
    "approvals for a verdict": ("deployment.hcl.approvals",
                                "verify @evidence.json --policy @deployment.hcl --approvals {}"),
    "list of tenants": ("deployment.hcl.approvals", "tenants {} --policy @deployment.hcl"),
    "approvals of a policy": ("deployment.hcl.approvals", "approve @deployment.hcl --approvals {}"),
    "policy": ("deployment.hcl", "audit verify @audit.jsonl --policy {}")}
HEAVY = {"policy", "measurements", "evidence for a verdict", "approvals for a verdict", "list of tenants",
         "approvals of a policy", "pack", "checkpoint beside a pack", "builder's key", "state disk"} | {
    name for name in COMMANDS if COMMANDS[name][1].startswith("audit pack -o")}


@pytest.mark.parametrize("name", COMMANDS)
def test_damage_is_told(name: str, papers: packs.Papers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut, turned, doubled, and other files in its place; what the command says has no traceback in it."""
    file, line = COMMANDS[name]
    subject, at = Subject(papers.folder / file, name not in HEAVY), papers.folder
    place = tmp_path / "damaged"
    place.touch(0o600)
    for data in (subject.path.read_bytes(), *subject.damaged(sum(name.encode()))):
        place.write_bytes(data)
        try:
            code = main([str(place) if word == "{}" else KEY if word == "KEY" else str(at / word[1:]) if word[0] == "@"
                         else word for word in line.split()])
        except SystemExit as ended:  # of argparse, for a key's name
            code = int(str(ended.code))
        told = capsys.readouterr()
        assert code in CODES, (name, data[:80])
        assert "Traceback" not in told.err + told.out
