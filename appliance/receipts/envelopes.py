"""Receipts read back and checked, by those who got them: the statement, its two envelopes, its
opening."""

from __future__ import annotations

from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import ValidationError

from appliance.codec import cbor, cborreader, strict
from appliance.codec.cborreader import TaggedItem
from appliance.errors import MalformedEvidenceError, NoteError
from appliance.receipts.cwt import ALGORITHM, COSE_SIGN1, EDDSA, STATEMENT, claims, header, signed_bytes
from appliance.receipts.dsse import PAYLOAD_TYPE, encoding
from appliance.receipts.opening import INFO, SUITE
from appliance.receipts.statement import Receipt
from appliance.transparency import ed25519

MAX_BYTES = 64 << 10
_HEADER_1 = cbor.encode({ALGORITHM: EDDSA})


def statement(payload: bytes) -> Receipt:
    """A statement from its bytes. NoteError for anything else."""
    try:
        if len(payload) > MAX_BYTES:
            raise ValueError("too long")
        found = Receipt.model_validate(strict.json_value(payload), strict=False)
        if found.encode() != payload:
            raise ValueError("another spelling")
    except (ValueError, ValidationError):
        raise NoteError("receipt: its statement is not in form") from None
    return found


def parts(envelope: Any) -> tuple[bytes, bytes]:
    """Payload and signature of an envelope, whoever signed it. NoteError for another form."""
    try:
        (line,) = envelope["signatures"]
        if set(envelope) != {"payload", "payloadType", "signatures"} or set(line) != {"keyid", "sig"} or (
                envelope["payloadType"] != PAYLOAD_TYPE or not isinstance(line["keyid"], str)):
            raise ValueError("other members")
        return strict.base64(envelope["payload"]), strict.base64(line["sig"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError("receipt: its envelope is not in form") from None


def payload(envelope: Any, public: bytes) -> bytes:
    """The payload of an envelope that this key (32 bytes) signed. NoteError for anything else."""
    data, signature = parts(envelope)
    try:
        ed25519.verify(public, signature, encoding(data))
    except InvalidSignature:
        raise NoteError("receipt: its signature does not verify by the key that was named") from None
    return data


def key_id(envelope: Any) -> str:
    """The key that an envelope in form names: a hint, which proves nothing."""
    return str(envelope["signatures"][0]["keyid"])


def token(data: bytes, public: bytes) -> Receipt:
    """The receipt in a token that this key signed. NoteError for anything else, and where a claim
    is not what the statement says."""
    try:
        value = cborreader.decode(data)
        if not isinstance(value, TaggedItem) or value.tag != COSE_SIGN1 or not isinstance(value.value, list):
            raise ValueError("not COSE_Sign1")
        protected, unprotected, payload, signature = value.value
        if unprotected != {} or not isinstance(protected, bytes):
            raise ValueError("other headers")
        if not isinstance(payload, bytes) or not isinstance(signature, bytes):
            raise ValueError("other headers")
        ed25519.verify(public, signature, signed_bytes(protected, payload))
        found = cborreader.decode(payload)
        inner = found.get(STATEMENT) if isinstance(found, dict) else None
        if not isinstance(inner, bytes):
            raise ValueError("no statement")
        receipt = statement(inner)
        if protected not in (_HEADER_1, header(receipt, public)):
            raise ValueError("other headers")
        same = cbor.encode(claims(receipt, inner)) == payload  # ValueError for a day that there is not
    except InvalidSignature:
        raise NoteError("receipt: its token's signature does not verify by the key that was named") from None
    except (ValueError, MalformedEvidenceError):
        raise NoteError("receipt: its token is not in form") from None
    if not same:
        raise NoteError("receipt: its token's claims are not those of its statement")
    return receipt


def opening(sealed: str, private: X25519PrivateKey, request_id: str) -> dict[str, Any]:
    """The opening of a request's receipt. NoteError where it is another's, or for another key."""
    try:
        plain = SUITE.decrypt(strict.base64url(sealed), private, INFO + request_id.encode()).rstrip(b" ")
        found = strict.json_value(plain)
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (InvalidTag, ValueError, AttributeError, TypeError):
        raise NoteError("receipt: its sealed opening does not open", hint="is it the auditor's private key?") from None
    return found
