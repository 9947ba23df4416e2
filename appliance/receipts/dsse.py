"""DSSE envelopes (secure-systems-lab/dsse, protocol v1) with one Ed25519 signature."""

from __future__ import annotations

import base64
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import strict
from appliance.errors import NoteError
from appliance.transparency import ed25519

PAYLOAD_TYPE = "application/vnd.appliance.receipt+json"


def encoding(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """The bytes that are signed (PAE): type and payload, each after its length."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, private: Ed25519PrivateKey, key_id: str) -> dict[str, Any]:
    """An envelope around a payload."""
    signature = private.sign(encoding(payload))
    return {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key_id, "sig": base64.b64encode(signature).decode()}]}


def opened(envelope: Any, public: bytes) -> bytes:
    """The payload of an envelope that this key (32 bytes) signed. NoteError for anything else."""
    payload, signature = parts(envelope)
    try:
        ed25519.verify(public, signature, encoding(payload))
    except InvalidSignature:
        raise NoteError("receipt: its signature does not verify by the key that was named") from None
    return payload


def key_id(envelope: Any) -> str:
    """The key that an envelope in form names: a hint, which proves nothing."""
    return str(envelope["signatures"][0]["keyid"])


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
