"""A receipt's statement as a CWT in COSE_Sign1 (RFC 8392, RFC 9052), by Ed25519.

Claims have the numbers of draft-tsyrulnikov-rats-attested-inference-receipt where their meanings
fit. That draft's profile is closed and knows two other platforms, so this is a profile of its own:
digests are salted, and the whole statement is one more claim.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import cbor
from appliance.codec.cbor import Encoded, Tagged
from appliance.errors import MalformedEvidenceError, NoteError
from appliance.receipts import statement
from appliance.receipts.statement import Receipt
from appliance.transparency import ed25519

PROFILES = {statement.PLACED: "urn:appliance:receipt:v1", statement.UNPLACED: "urn:appliance:receipt:v2"}
COSE_SIGN1 = 18
_PROTECTED = cbor.encode({1: -8})  # the algorithm: EdDSA

ISSUER, ISSUED_AT, TOKEN_ID, EAT_PROFILE = 1, 6, 7, 265
MODEL_ID, MODEL_HASH, REQUEST_HASH, RESPONSE_HASH = -65537, -65539, -65540, -65541
MEASUREMENTS, POLICY_VERSION, SEQUENCE_NUMBER = -65543, -65544, -65545
STATEMENT = -70000  # ours: the statement's bytes


def claims(receipt: Receipt, payload: bytes) -> dict[int | str, Encoded]:
    """The claims of a receipt, whose statement's bytes are `payload`."""
    issued = datetime.fromisoformat(receipt.time).astimezone(UTC)
    image = receipt.image
    measured: dict[int | str, Encoded] = {"platform": image.platform}
    if image.measurement is not None:
        measured["measurement"] = bytes.fromhex(image.measurement)
    place: dict[int | str, Encoded] = {} if receipt.record.seq is None else {SEQUENCE_NUMBER: receipt.record.seq}
    return place | {
        ISSUER: receipt.origin, ISSUED_AT: max(0, int(issued.timestamp())),
        TOKEN_ID: bytes.fromhex(receipt.request.id.removeprefix("req-")), EAT_PROFILE: PROFILES[receipt.type],
        MODEL_ID: receipt.model.name, MODEL_HASH: bytes.fromhex(receipt.model.sha256),
        REQUEST_HASH: bytes.fromhex(receipt.request.digest), RESPONSE_HASH: bytes.fromhex(receipt.answer.digest),
        MEASUREMENTS: measured, POLICY_VERSION: receipt.policy_sha384,
        STATEMENT: payload}


def _signed(payload: bytes) -> bytes:
    return cbor.encode(["Signature1", _PROTECTED, b"", payload])


def sign(receipt: Receipt, statement_bytes: bytes, private: Ed25519PrivateKey) -> bytes:
    """The token's bytes: COSE_Sign1 under its tag. `statement_bytes` is the encoded receipt."""
    payload = cbor.encode(claims(receipt, statement_bytes))
    parts: list[Encoded] = [_PROTECTED, {}, payload, private.sign(_signed(payload))]
    return bytes((0xC0 | COSE_SIGN1,)) + cbor.encode(parts)


def opened(token: bytes, public: bytes) -> Receipt:
    """The receipt in a token that this key signed. NoteError for anything else, and where a claim
    is not what the statement says."""
    try:
        value = cbor.decode(token)
        if not isinstance(value, Tagged) or value.tag != COSE_SIGN1 or not isinstance(value.value, list):
            raise ValueError("not COSE_Sign1")
        protected, header, payload, signature = value.value
        if protected != _PROTECTED or header != {}:
            raise ValueError("other headers")
        if not isinstance(payload, bytes) or not isinstance(signature, bytes):
            raise ValueError("other headers")
        ed25519.verify(public, signature, _signed(payload))
        found = cbor.decode(payload)
        inner = found.get(STATEMENT) if isinstance(found, dict) else None
        if not isinstance(inner, bytes):
            raise ValueError("no statement")
        receipt = statement.parse(inner)
        same = cbor.encode(claims(receipt, inner)) == payload  # ValueError for a day that there is not
    except InvalidSignature:
        raise NoteError("receipt: its token's signature does not verify by the key that was named") from None
    except (ValueError, MalformedEvidenceError):
        raise NoteError("receipt: its token is not in form") from None
    if not same:
        raise NoteError("receipt: its token's claims are not those of its statement")
    return receipt
