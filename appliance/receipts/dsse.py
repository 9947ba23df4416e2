"""DSSE envelopes (secure-systems-lab/dsse, protocol v1) with one Ed25519 signature."""

from __future__ import annotations

import base64
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
