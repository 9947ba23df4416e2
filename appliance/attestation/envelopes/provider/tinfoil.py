"""Tinfoil's evidence: a format by its address, and the report in base64, from version 2 in gzip.

    {"format": "https://tinfoil.sh/predicate/sev-snp-guest/v2", "body": "H4sIAAAA..."}
"""

from __future__ import annotations

import zlib

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

MAX_BODY = 1 << 17
_WHAT = "Tinfoil evidence"
_ADDRESS = "https://tinfoil.sh/predicate/"
_FORMATS = tuple(f"{_ADDRESS}{kind}/{version}" for kind in ("sev-snp-guest", "tdx-guest") for version in ("v1", "v2"))
_GZIP = b"\x1f\x8b"


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return isinstance(found.get("format"), str) and found["format"].startswith(_ADDRESS)


def read(found: Members) -> EnvelopeParts:
    """The report or quote."""
    if found["format"] not in _FORMATS:
        raise UnsupportedEvidenceError(f"{_WHAT}: the format {found['format'][:80]!r} is not known",
                                       code="envelope-version", hint="known: " + ", ".join(_FORMATS))
    strict.only(found, ("format", "body"), _WHAT)
    body = strict.octets_in_base64(found.get("body"), f"{_WHAT}: body")
    return EnvelopeParts(_unpacked(body) if body.startswith(_GZIP) else body, told=(("format", found["format"]),))


def _unpacked(body: bytes) -> bytes:
    """One gzip member of at most `MAX_BODY` bytes, and nothing behind it."""
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        data = unpacking.decompress(body, MAX_BODY)
    except zlib.error:
        raise MalformedEvidenceError(f"{_WHAT}: body is not gzip") from None
    if not unpacking.eof or unpacking.unused_data:
        raise MalformedEvidenceError(f"{_WHAT}: body is cut, followed by something, or unpacks to more than "
                                     f"{MAX_BODY} bytes")
    return data
