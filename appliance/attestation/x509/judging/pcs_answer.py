"""One raw answer of Intel's Provisioning Certification Service (PCS): JSON and its signature."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

_NAME = re.compile(rb'\s*\{\s*"(tcbInfo|enclaveIdentity)"\s*:\s*')
TCB, IDENTITY = "tcbInfo", "enclaveIdentity"
_SIGNATURE_BYTES = 64
_NO_DATE = datetime.min.replace(tzinfo=UTC)
_WANTED_ID = {TCB: "TDX", IDENTITY: "TD_QE"}


@dataclass(frozen=True)
class PcsAnswer:
    """A raw answer: `name` says which, `text` is what the signature covers, to the byte; nothing of
    it is verified."""

    name: str
    text: str
    signature: str
    value: dict[str, Any]
    file: str

    @property
    def misfit(self) -> str:
        """Why a TDX quote has no use for it; empty where it may have."""
        found, wanted = self.value.get("id"), _WANTED_ID[self.name]
        return "" if found == wanted else f"{self.name} of {str(found)[:20]!r}, a TDX quote needs {wanted!r}"

    @property
    def issued(self) -> datetime:
        """When it was issued; the earliest time there is where it does not say."""
        return as_date(self.value.get("issueDate"))

    @property
    def ends(self) -> datetime:
        """When the next one is due; the earliest time there is where it does not say."""
        return as_date(self.value.get("nextUpdate"))

    def in_force(self, at: datetime) -> bool:
        """Whether a time is between its own dates."""
        return self.issued <= at <= self.ends

    def signed_by(self, signer: x509.Certificate) -> bool:
        """Whether the key of a certificate, which may be anybody's, signed its text."""
        key, raw = signer.public_key(), bytes.fromhex(self.signature)
        if not isinstance(key, ec.EllipticCurvePublicKey) or len(raw) != _SIGNATURE_BYTES:
            return False
        half = _SIGNATURE_BYTES // 2
        r, s = int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
        try:
            key.verify(encode_dss_signature(r, s), self.text.encode(), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True


def as_date(text: object) -> datetime:
    """A time as Intel writes it; the earliest there is for another text."""
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        found = _NO_DATE
    return found if found.tzinfo is not None else _NO_DATE


def answer(data: bytes, file: str) -> PcsAnswer | None:
    """The raw answer in JSON text; None if it is not one."""
    found = _NAME.match(data)
    if found is None:
        return None
    try:
        text, name = data.decode(), found[1].decode()
        value, end = json.JSONDecoder().raw_decode(text, len(data[:found.end()].decode()))
        whole = json.loads(text)
        signature = whole["signature"]
        bytes.fromhex(signature)
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(value, dict) or whole[name] != value:
        return None
    return PcsAnswer(name, text[len(data[:found.end()].decode()):end], signature, value, file)
