"""A receipt's statement as a CWT in COSE_Sign1 (RFC 8392, RFC 9052), by Ed25519.

Claims have the numbers of draft-tsyrulnikov-rats-attested-inference-receipt where their meanings
fit. That draft's profile is closed and knows two other platforms, so this is a profile of its own:
digests are salted, and the whole statement is one more claim.

Version 2 of the token is made, and version 1 is read. Version 2 names its key, and says issuer and
subject in the protected header (RFC 9597), as a transparency service demands it (RFC 9943).
"""

from __future__ import annotations

from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import cbor
from appliance.codec.cbor import Encoded
from appliance.receipts import statement
from appliance.receipts.statement import Receipt
from appliance.transparency.note import NoteKey

PROFILES = {statement.PLACED: "urn:appliance:receipt:v1", statement.UNPLACED: "urn:appliance:receipt:v2",
            statement.ENDLESS: "urn:appliance:receipt:v3"}
COSE_SIGN1 = 18
ALGORITHM, KEY_ID, CWT_CLAIMS = 1, 4, 15  # parameters of the protected header
EDDSA = -8

SUBJECT = 2
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
    found: dict[int | str, Encoded] = {
        ISSUER: receipt.origin, ISSUED_AT: max(0, int(issued.timestamp())),
        TOKEN_ID: bytes.fromhex(receipt.request.id.removeprefix("req-")), EAT_PROFILE: PROFILES[receipt.type],
        MODEL_ID: receipt.model.name, MODEL_HASH: bytes.fromhex(receipt.model.sha256),
        REQUEST_HASH: bytes.fromhex(receipt.request.digest), RESPONSE_HASH: bytes.fromhex(receipt.answer.digest),
        MEASUREMENTS: measured, POLICY_VERSION: receipt.policy_sha384,
        STATEMENT: payload}
    if receipt.record.seq is not None:
        found[SEQUENCE_NUMBER] = receipt.record.seq
    return found


def header(receipt: Receipt, public: bytes) -> bytes:
    """The protected header of version 2, of a token that this key (32 bytes) signs."""
    said: dict[int | str, Encoded] = {ISSUER: receipt.origin, SUBJECT: receipt.request.id}
    return cbor.encode({ALGORITHM: EDDSA, KEY_ID: NoteKey(receipt.origin, public).id, CWT_CLAIMS: said})


def signed_bytes(protected: bytes, payload: bytes) -> bytes:
    """The bytes that a token's signature is over."""
    return cbor.encode(["Signature1", protected, b"", payload])


def sign(receipt: Receipt, statement_bytes: bytes, private: Ed25519PrivateKey) -> bytes:
    """The token's bytes: COSE_Sign1 under its tag. `statement_bytes` is the encoded receipt."""
    payload = cbor.encode(claims(receipt, statement_bytes))
    protected = header(receipt, private.public_key().public_bytes_raw())
    parts: list[Encoded] = [protected, {}, payload, private.sign(signed_bytes(protected, payload))]
    return bytes((0xC0 | COSE_SIGN1,)) + cbor.encode(parts)
