"""The token of a receipt: version 2 is a signed statement of SCITT, and version 1 is read as before."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.codec import cbor, cborreader
from appliance.errors import NoteError
from appliance.receipts import cwt, envelopes
from appliance.receipts.statement import Receipt
from tests.fuzz.receipts_fuzz import KEY, PRIVATE, PUBLIC, _receipt

BEFORE = Path(__file__).parents[1] / "goldens" / "receipt-token-1.txt"  # by the version before
LOG_2 = Path(__file__).parents[2] / "docs/formats/audit-log-2-vectors.json"  # of which its record is


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _signed(header: Any, unprotected: Any = None, payload: bytes | None = None,
            receipt: Receipt | None = None) -> bytes:
    """A token with this header, by the same key."""
    receipt = receipt or _receipt()
    protected = cbor.encode(header)
    inside = cbor.encode(cwt.claims(receipt, receipt.encode())) if payload is None else payload
    signature = PRIVATE.sign(cbor.encode(["Signature1", protected, b"", inside]))
    return b"\xd2" + cbor.encode([protected, unprotected or {}, inside, signature])


def test_it_is_a_signed_statement() -> None:
    """RFC 9943, figure 3: a protected header with CWT claims, issuer and subject among them, which are text. RFC 9597:
    a claim that the payload has, too, has the same value there."""
    token = cwt.sign(_receipt(), _receipt().encode(), PRIVATE)
    value = cborreader.decode(token)
    assert isinstance(value, cborreader.TaggedItem)
    assert isinstance(value.value, list)
    assert 18 == value.tag
    protected, unprotected, payload, signature = value.value
    assert ({}, 64) == (unprotected, len(bytes(signature)))  # type: ignore[arg-type]
    header: Any = cborreader.decode(protected)  # type: ignore[arg-type]
    assert {1: -8, 4: KEY.id, 15: {1: KEY.name, 2: "req-" + "0a" * 16}} == header
    inside: Any = cborreader.decode(payload)  # type: ignore[arg-type]
    assert header[15][1] == inside[1]
    PRIVATE.public_key().verify(signature, cbor.encode(["Signature1", protected, b"", payload]))  # type: ignore[arg-type]
    assert _receipt() == envelopes.token(token, PUBLIC)


def test_a_token_of_before_is_read() -> None:
    """Its bytes are frozen."""
    receipt = _receipt(json.loads(LOG_2.read_text()))
    assert receipt == envelopes.token(_decoded(BEFORE.read_text().strip()), PUBLIC)
    assert _signed({1: -8}, receipt=receipt) == _decoded(BEFORE.read_text().strip())


CLAIMS: dict[int | str, Any] = {1: KEY.name, 2: "req-" + "0a" * 16}
HEADER: dict[int | str, Any] = {1: -8, 4: KEY.id, 15: CLAIMS}


@pytest.mark.parametrize("make", [
    lambda: _signed(HEADER | {1: -7}), lambda: _signed({1: -8, 15: CLAIMS}), lambda: _signed({1: -8, 4: KEY.id}),
    lambda: _signed(HEADER | {4: bytes(4)}), lambda: _signed(HEADER | {15: CLAIMS | {2: "req-" + "0b" * 16}}),
    lambda: _signed(HEADER | {15: {1: KEY.name}}), lambda: _signed(HEADER | {15: CLAIMS | {3: "x"}}),
    lambda: _signed(HEADER | {16: "x"}), lambda: _signed(HEADER, {4: KEY.id}), lambda: _signed(HEADER, None, b"\xa0"),
    lambda: _signed([])])
def test_no_other_header_is_accepted(make: Callable[[], bytes]) -> None:
    """Also where the key signed it: another algorithm, id, issuer or subject, one less or more."""
    assert _receipt() == envelopes.token(_signed(HEADER), PUBLIC)
    with pytest.raises(NoteError):
        envelopes.token(make(), PUBLIC)
