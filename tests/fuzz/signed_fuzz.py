"""Fuzz target: documents that strangers sign. The first byte says what the rest is: a timestamp's token, a response
that has one, a publisher's bundle, a release log with its checkpoint, a list of machines, a successor of an image."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.errors import NoteError, PinError, PolicyError
from appliance.signed import bundle, desk, machines, releases, successor, timestamps
from appliance.transparency import note
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.tree import LeafRange, leaf_hash
from tests.support.policies import in_schema, valid

GOLDENS = Path(__file__).parents[1] / "goldens"
STAMP = json.loads((GOLDENS / "timestamp.json").read_text())
TOKEN, DIGEST = base64.b64decode(STAMP["token"]), bytes.fromhex(STAMP["digest"])
RESPONSE = b"\x30\x82" + (len(TOKEN) + 5).to_bytes(2, "big") + b"\x30\x03\x02\x01\x00" + TOKEN
BUNDLE = (GOLDENS / "bundles" / "certificate.sigstore").read_bytes()
KEYS = json.loads((GOLDENS / "bundles" / "keys.json").read_text())
MODEL = hashlib.sha256(b"GGUF of a test").digest()
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = PRIVATE.public_key().public_bytes_raw()


def _log() -> tuple[bytes, bytes]:
    """A release log of three records, and its checkpoint."""
    entries = [("releases.opened", {"log": "0a" * 16, "builder_ed25519": PUBLIC.hex()}),
               ("release.measurements", {"sha384": "1a" * 48, "version": "0.1.0"}), ("release.current", {})]
    lines, tree, prev = list[bytes](), LeafRange(), None
    for seq, (event, fields) in enumerate(entries):
        lines.append(releases.record(seq, prev, event, fields, datetime(2026, 3, 1, tzinfo=UTC)))
        prev = leaf_hash(lines[-1])
        tree.append(prev)
    here = Checkpoint(releases.ORIGIN + "0a" * 16, tree.end, tree.root)
    head = note.Note(here.text, (note.sign(here.text, here.origin, PRIVATE),)).encode()
    return b"".join(line + b"\n" for line in lines), head


LOG, HEAD = _log()
VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/machine-list-vectors.json").read_text())
LISTS = {each["file"].encode() for each in VECTORS["vectors"] if each["expect"] == "success"}
POLICY = valid(in_schema(2).replace('"demo"', f'"{VECTORS["appliance"]}"', 1).replace(
    "tee {", f'''tee {{ evidence {{ machines {{
    authority = "ed25519:{VECTORS["authority"]["public_key"]}"
    list = "machines.json"
  }} }}''', 1))
STATED = valid(in_schema(2) + f'''state {{
  device = "/dev/vdb"
  key {{
    provider = "tpm"
    pcrs = [4, 11]
  }}
  successor {{ authority = "ed25519:{PUBLIC.hex()}" }}
}}''')
REGISTERS = {4: bytes(range(32)), 11: bytes(range(1, 33))}
FOLLOWS = desk.sign_successor("demo", REGISTERS, PRIVATE)
HELD = [machines.parse(each, POLICY) for each in sorted(LISTS)]


def seeds() -> list[bytes]:
    """A genuine one of each kind."""
    return [b"t" + TOKEN, b"r" + RESPONSE, b"b" + BUNDLE, b"l" + LOG, *(b"m" + each for each in sorted(LISTS)),
            b"s" + FOLLOWS]


def fuzz(data: bytes) -> None:
    """Read; nothing is accepted that nobody signed."""
    kind, rest = data[:1], data[1:]
    try:
        if kind in (b"t", b"r"):
            token = timestamps.token_of(rest) if kind == b"r" else rest
            found = timestamps.verify(token, DIGEST, STAMP["root_sha256"])
            if found != timestamps.verify(TOKEN, DIGEST, STAMP["root_sha256"]):
                raise AssertionError("a timestamp that nobody signed")
        if kind == b"b":
            signed = bundle.check(rest, KEYS["certificate"], MODEL, root_sha256=KEYS["root_sha256"])
            if signed != bundle.check(BUNDLE, KEYS["certificate"], MODEL, root_sha256=KEYS["root_sha256"]):
                raise AssertionError("a bundle that nobody signed")
        if kind == b"l" and releases.read(rest, HEAD, PUBLIC).lines != tuple(LOG.splitlines()):
            raise AssertionError("a release that nobody signed")
        if kind == b"m" and machines.parse(rest, POLICY) not in HELD:
            raise AssertionError("a list of machines that nobody signed")
        if kind == b"s" and successor.parse(rest, STATED) != REGISTERS:
            raise AssertionError("a successor that nobody signed")
    except (NoteError, PinError, PolicyError):
        return
