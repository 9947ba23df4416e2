"""Evidence as it came: bytes to its parts, each checked field by field. Nothing is believed yet."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from appliance.attestation.binding import (
    KEY_RELEASE,
    SERVE,
    SESSION_RELEASE,
    KeyReleaseStatement,
    ServeStatement,
    SessionReleaseStatement,
    Statement,
    describe,
    leaf,
)
from appliance.attestation.evidence import FORMAT, SESSION_FORMAT, Evidence, decoded
from appliance.codec import filekind, strict
from appliance.errors import MalformedEvidenceError

FORMATS = (FORMAT, SESSION_FORMAT)
MAX_EVIDENCE_BYTES = 1 << 20
_TYPES: dict[str, type[Statement]] = {
    SERVE: ServeStatement, KEY_RELEASE: KeyReleaseStatement, SESSION_RELEASE: SessionReleaseStatement}


def parse_statement(value: Any) -> Statement:
    """The statement in decoded JSON `value`. Raises MalformedEvidenceError, naming the field."""
    kind = value.get("type") if isinstance(value, dict) else None
    model = _TYPES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise MalformedEvidenceError("statement: type is missing or unknown", hint=f"known: {', '.join(_TYPES)}")
    absent = sorted(set(model.model_fields) - set(value))
    if absent:
        raise MalformedEvidenceError(f"statement: {absent[0]} is absent", hint="what does not apply is null")
    try:
        statement = model.model_validate(value)
    except ValidationError as error:
        raise MalformedEvidenceError(f"statement: {describe(error)}") from None
    if statement.model_dump(mode="json") != value:
        raise MalformedEvidenceError("statement: a nested field is absent", hint="what does not apply is null")
    return statement


def statement_of(evidence: Evidence) -> Statement:
    """The statement, checked field by field. Raises MalformedEvidenceError."""
    return parse_statement(evidence.statement)


def collateral_of(evidence: Evidence) -> tuple[bytes, ...]:
    """The decoded items of collateral. Raises MalformedEvidenceError unless each is strict base64
    (RFC 4648 section 4)."""
    return tuple(decoded(each, "collateral") for each in evidence.collateral)


def leaf_of(evidence: Evidence, tls_spki_sha256: str | None) -> bytes:
    """Return the nonce's leaf in the statement's tree. Raises MalformedEvidenceError."""
    key = None if tls_spki_sha256 is None else bytes.fromhex(tls_spki_sha256)
    session = None if evidence.session is None else bytes.fromhex(evidence.session)
    return leaf(bytes.fromhex(evidence.proof.nonce), key, session)


def parse(data: bytes) -> Evidence:
    """Evidence from its JSON. Raises MalformedEvidenceError on anything that is not exactly the
    format."""
    if len(data) > MAX_EVIDENCE_BYTES:
        raise MalformedEvidenceError(f"evidence: {len(data)} bytes, at most {MAX_EVIDENCE_BYTES}")
    try:
        value = strict.json_value(data, integers=True)
    except ValueError:
        raise MalformedEvidenceError("evidence: not JSON, or a key twice, or a number that is no integer"
                                     f"{filekind.instead(data)}") from None
    if not isinstance(value, dict) or value.get("format") not in FORMATS:
        raise MalformedEvidenceError(f"evidence: format is missing or unknown{filekind.instead(data)}",
                                     hint=f"known: {', '.join(FORMATS)}")
    if value["format"] == FORMAT and "session" in value:
        raise MalformedEvidenceError("evidence: version 1 has no session")
    try:
        evidence = Evidence.model_validate(value)
    except ValidationError as error:
        raise MalformedEvidenceError(f"evidence: {describe(error)}") from None
    statement_of(evidence)
    return evidence
