"""Fuzz target: what auditors read from strangers. The first byte says what the rest is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.auditor import bundle, receipts
from appliance.auditor.examine import Trust, examine
from appliance.auditor.receipts import ReceiptDemands
from appliance.auditor.records import Reader
from appliance.errors import NoteError
from appliance.receipts import cwt, dsse, envelopes
from appliance.receipts.statement import (
    Answered,
    AnsweringModel,
    Asked,
    Choosing,
    Image,
    Receipt,
    RecordPlace,
    Tokens,
)
from appliance.transparency import proofs, reading
from appliance.transparency.note import NoteKey

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/audit-log-3-vectors.json").read_text())
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["audit_key_seed"]))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
PERIODS = {int(number): bytes.fromhex(key) for number, key in VECTORS["period_keys"].items()}
LOG = "".join(line + "\n" for line in VECTORS["lines"]).encode()
KEY = NoteKey(f"appliance/audit/{VECTORS['log']}", PUBLIC)


def _receipt(vectors: dict[str, Any] = VECTORS) -> Receipt:
    """A receipt of a record of the vectors under their checkpoint."""
    seq, head = 12, reading.signed_head(vectors["checkpoint"].encode())[0]
    return Receipt(
        request=Asked(id="req-" + "0a" * 16, endpoint="/v1/completions", digest="ab" * 32),
        answer=Answered(digest="cd" * 32, streamed=False, finish="stop"),
        tokens=Tokens(digest="ef" * 32, prompt=1, completion=1, cached=0, rounding=1),
        model=AnsweringModel(name="demo", sha256="ab" * 32, sealed_header_sha256=None, publisher=None,
                              publisher_identity=None),
        policy_sha384="ab" * 48, generation=1,
        image=Image(platform="simulated", measurement=None, version="0.1.0", code_sha384=None, kernels_sha384=None,
                    self_test_sha384="ab" * 48),
        sampling=Choosing(samplers=("top_k",), settings={"temperature": 0.5}, seed="7", kv_cache="f16",
                          digest="ab" * 32),
        record=RecordPlace(log=vectors["log"], epoch=2, boot="ab" * 16, seq=seq, leaf=vectors["leaves"][seq]),
        time="2026-03-01T09:00:00Z", checkpoint=vectors["checkpoint"], path=tuple(
            each.hex() for each in proofs.path([bytes.fromhex(leaf) for leaf in vectors["leaves"][:head.size]], seq)))


def seeds() -> list[bytes]:
    """A genuine one of each kind."""
    receipt = _receipt()
    whole = {"envelope": dsse.sign(receipt.encode(), PRIVATE, KEY.id.hex()),
             "cwt": base64.urlsafe_b64encode(cwt.sign(receipt, receipt.encode(), PRIVATE)).rstrip(b"=").decode(),
             "opening": {"salts": {"request": "00" * 32, "answer": "00" * 32}}}
    records = [Reader().read(line.encode()) for line in VECTORS["lines"]]
    head = reading.signed_head(VECTORS["checkpoint"].encode())[1]
    plain = bundle.export(records, [2, 5], head)
    keyed = bundle.export(records, [5, 10], head, PERIODS)
    return [b"n" + VECTORS["checkpoint"].encode(), b"l" + LOG, b"r" + json.dumps(whole, separators=(",", ":")).encode(),
            b"c" + cwt.sign(receipt, receipt.encode(), PRIVATE), b"b" + json.dumps(plain).encode(),
            b"b" + json.dumps(keyed).encode()]


def fuzz(data: bytes) -> None:
    """Read; nothing is accepted that nobody signed."""
    kind, rest = data[:1], data[1:]
    try:
        if kind == b"n" and reading.signed_head(rest, KEY)[0].text not in VECTORS["checkpoint"]:
            raise AssertionError("a checkpoint that nobody signed")
        if kind == b"l":
            _log(rest)
        if kind == b"r" and receipts.verify(receipts.take(rest), ReceiptDemands(PUBLIC))[0] != _receipt():
            raise AssertionError("a receipt that nobody signed")
        if kind == b"c" and envelopes.token(rest, PUBLIC) != _receipt():
            raise AssertionError("a token that nobody signed")
        if kind == b"b":
            found = bundle.read(rest, KEY, Reader())
            if any(record.line.decode() != VECTORS["lines"][index] for index, record in found.records.items()):
                raise AssertionError("a record that nobody wrote")
            for index, key in found.keys.items():
                Reader().opened_by(key, found.records[index])
    except NoteError:
        return


def _log(data: bytes) -> None:
    lines = data.splitlines(keepends=True)
    report = examine(lines, trust=Trust(keys=(PUBLIC,)))
    if report.bad is None:
        mine = [line for line in lines if b'"v":1' not in line]
        if mine[:report.proved] != LOG.splitlines(keepends=True)[:report.proved]:
            raise AssertionError("a log that nobody wrote is proved")
