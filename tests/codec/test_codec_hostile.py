"""What codecs were given to break them: nesting that exhausts the stack, numbers beyond a double, second spellings."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import cbor, der, strict
from appliance.codec.canonical import canonical
from appliance.errors import MalformedEvidenceError, NoteError, PolicyError
from appliance.receipts import cwt, envelopes
from appliance.signed import approvals, releases, tenants
from tests.fuzz import receipts_fuzz

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.mark.parametrize("levels", [100, 400, 900, 5000, 100_000])
@pytest.mark.parametrize("around", [("[", "]"), ('{"a":', "}")])
def test_nesting_has_a_canonical_form_or_none(levels: int, around: tuple[str, str]) -> None:
    """Whatever JSON reads, RFC 8785 writes again or refuses by a ValueError, as all callers expect."""
    text = around[0] * levels + "1" + around[1] * levels
    try:
        value = strict.json_value(text)
    except ValueError:
        return
    try:
        assert text.encode() == canonical(value)
    except ValueError:
        assert levels > 100


NESTED = [json.dumps(None), "[" * 900 + "1" + "]" * 900, '{"a":' * 900 + "1" + "}" * 900]


@pytest.mark.parametrize("nested", NESTED)
def test_signed_documents_take_no_nesting(nested: str) -> None:
    """Release logs, lists of tenants, approvals and statements: refused by an error of their own."""
    line = f'{{"event":"release.current","prev":null,"seq":0,"time":{nested},"v":1}}'
    with pytest.raises(NoteError):
        releases.read(line.encode() + b"\n", b"", bytes(32))
    with contextlib.suppress(ValueError):
        assert tenants.message(strict.json_value(nested)).endswith(nested.encode())
    with pytest.raises(PolicyError):
        approvals.parse(f'{{"approvals":{nested}}}'.encode())
    with pytest.raises(NoteError):
        envelopes.statement(f'{{"answer":{nested}}}'.encode())


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]", '{"a":1' + "0" * 400 + ".0}"])
def test_a_number_is_one_that_a_double_has(text: str) -> None:
    """`float` makes infinity of it, which JSON has not."""
    with pytest.raises(ValueError):
        strict.json_value(text)


@pytest.mark.parametrize("text", ["1e308", "0.1", "5e-324", "1e-999", "-0.0"])
def test_other_numbers_are_read(text: str) -> None:
    """As Python's own reader has them."""
    assert json.loads(text) == strict.json_value(text)


@pytest.mark.parametrize("content", ["8001", "2a8001", "2a80808001", "80"])
def test_an_object_identifier_has_one_spelling(content: str) -> None:
    """X.690, section 8.19.2: the first byte of a number is not 0x80."""
    with pytest.raises(MalformedEvidenceError):
        der.object_identifier(bytes.fromhex(content))
    assert "1.2.840" == der.object_identifier(bytes.fromhex("2a8648"))


def _token(payload: Any) -> bytes:
    """A token over any payload, by a key."""
    protected, data = cbor.encode({1: -8}), cbor.encode(payload)
    signature = KEY.sign(cbor.encode(["Signature1", protected, b"", data]))
    return b"\xd2" + cbor.encode([protected, {}, data, signature])


@pytest.mark.parametrize("time", ["2026-13-01T00:00:00Z", "2026-02-31T00:00:00Z", "0000-01-01T00:00:00Z",
                                  "2026-01-01T25:00:00Z", "٢٠٢٦-01-01T00:00:00Z"])
def test_a_token_of_a_day_that_there_is_not_is_refused(time: str) -> None:
    """Its signer wrote it; whoever reads it is told."""
    receipt = receipts_fuzz._receipt()
    payload = receipt.encode().replace(b"2026-03-01T09:00:00Z", time.encode())
    with pytest.raises(NoteError):
        envelopes.token(_token({cwt.STATEMENT: payload}), KEY.public_key().public_bytes_raw())


@pytest.mark.parametrize("payload", [1, "x", [], {}, {cwt.STATEMENT: "x"}, {cwt.STATEMENT: b""},
                                     {cwt.STATEMENT: b"{}"}, {cwt.STATEMENT: b"[" * 900}])
def test_a_token_of_something_else_is_refused(payload: Any) -> None:
    """Signed, and no receipt."""
    with pytest.raises(NoteError):
        envelopes.token(_token(payload), KEY.public_key().public_bytes_raw())
