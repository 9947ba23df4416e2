"""A verdict for machines: an EAT Attestation Result as a signed JWT.

Source: draft-ietf-rats-ear-04 (claims, JSON form), draft-ietf-rats-ar4si (the trustworthiness
vector and its values), RFC 9711 (EAT), RFC 7519 (JWT). One submodule, `appliance`. Claims that the
verdict does not make are left out of the vector, which means "no claim".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import __version__
from appliance.attestation import keyfile
from appliance.client import rules
from appliance.client.verdict import (
    AWS_TRUSTED,
    FIRMWARE_PROVED,
    HOST_TRUSTED,
    INVALID,
    KEY_BOUND,
    NOT_MET,
    SIMULATED,
    UNCHECKED,
    VERIFIED,
    Status,
    Verdict,
)
from appliance.codec import jws
from appliance.codec.canonical import canonical
from appliance.codec.jws import PrivateKey
from appliance.codec.strict import to_base64url
from appliance.errors import PolicyError

PROFILE = "tag:ietf.org,2026:rats/ear#04"
MEDIA_TYPE = "application/vnd.appliance.evidence+json"
DEVELOPER = "urn:appliance"
SUBMODULE = "appliance"
_TIERS: dict[Status, str] = {
    VERIFIED: "affirming", KEY_BOUND: "warning", HOST_TRUSTED: "warning", FIRMWARE_PROVED: "warning",
    AWS_TRUSTED: "warning", SIMULATED: "contraindicated", INVALID: "contraindicated",
    NOT_MET: "contraindicated", UNCHECKED: "none"}
# Values of AR4SI, section 2.3: 2 and 3 affirm, 32 and above warn, 96 and above speak against.
_VECTORS: dict[Status, dict[str, int]] = {
    VERIFIED: {"instance-identity": 2, "configuration": 2, "executables": 3, "hardware": 2, "runtime-opaque": 2},
    KEY_BOUND: {"configuration": 2, "executables": 3, "hardware": 2, "runtime-opaque": 2},
    FIRMWARE_PROVED: {"hardware": 2, "runtime-opaque": 32},
    HOST_TRUSTED: {"configuration": 2, "executables": 3, "runtime-opaque": 32},
    AWS_TRUSTED: {"instance-identity": 2, "configuration": 2, "executables": 3, "runtime-opaque": 32},
    SIMULATED: {"hardware": 97, "runtime-opaque": 96},
    INVALID: {"instance-identity": 99},  # "cryptographic validation of the Evidence has failed"
    NOT_MET: {}, UNCHECKED: {}}
_COMMON: dict[str, tuple[str, ...]] = {
    "instance-identity": ("nonce", "session", "tls-key", "certificate", "certificate-evidence", "channel", "id-key",
                          "author-key", "platform", "machine"),
    "configuration": ("policy", "launch-policy", "models", "approvals", "measured-policy", "smt", "self-test",
                      "access-pattern", "memory-access", "overlap"),
    "executables": ("measurement", "pcr", "rtmr", "gate"),
    "hardware": ("tcb-",),
    "runtime-opaque": ("debug", "migration")}
_ABOUT = {claim: (*common, *(each.name for each in rules.OWN if each.about == claim))
          for claim, common in _COMMON.items()}
CONTRAINDICATED = 96


def new_key() -> PrivateKey:
    """A key for one token."""
    return ec.generate_private_key(ec.SECP256R1())


def load_key(path: Path) -> PrivateKey:
    """A verifier's private key from PEM. Raises PolicyError."""
    key = keyfile.private_key(path)
    if not isinstance(key, Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise PolicyError(f"key: {path} is neither Ed25519 nor ECDSA", code="key-malformed",
                          hint="openssl genpkey -algorithm ed25519 -out KEY.pem")
    jws.algorithm(key)
    return key


def public_jwk(key: PrivateKey) -> bytes:
    """The public key that verifies the token, as a JSON Web Key."""
    return canonical(jws.jwk(key.public_key())) + b"\n"


def _vector(verdict: Verdict) -> dict[str, int]:
    vector = dict(_VECTORS[verdict.status])
    failed = [each.rule for each in verdict.findings if each.outcome == "fails"]
    for claim, about in _ABOUT.items():
        if any(rule in about or rule.startswith(_prefixes(about)) for rule in failed):
            vector[claim] = CONTRAINDICATED
    return vector


def _prefixes(about: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in about if name in ("pcr", "rtmr", "tcb-")) or ("\0",)


def claims(verdict: Verdict, *, issued: datetime | None = None) -> dict[str, Any]:
    """The claims set of a verdict. `issued`: when the token is made (now), whatever day the verdict
    is as of."""
    appraisal: dict[str, Any] = {
        "ear_status": _TIERS[verdict.status],
        "ear_appraisal_policy_ids": [f"urn:appliance:policy:sha384:{verdict.policy_sha384.hex()}"],
        "ear_verifier_claims": {
            "appliance_verdict": verdict.status, "appliance_code": verdict.code, "appliance_target": verdict.target,
            "appliance_at": f"{verdict.at:%Y-%m-%dT%H:%M:%SZ}",
            "appliance_test_roots": verdict.test_roots,
            "appliance_tls_spki_sha256": None if verdict.spki_sha256 is None else verdict.spki_sha256.hex(),
            "appliance_findings": {each.rule: each.outcome for each in verdict.findings}}}
    if vector := _vector(verdict):
        appraisal["ear_trustworthiness_vector"] = vector
    if verdict.statement is not None:
        appraisal["ear_attester_claims"] = {"appliance_statement": verdict.statement.model_dump(mode="json")}
    whole: dict[str, Any] = {
        "eat_profile": PROFILE, "iat": int((issued or datetime.now(UTC)).timestamp()),
        "ear_verifier_id": {"developer": DEVELOPER, "build": f"appliance {__version__}"},
        "submods": {SUBMODULE: appraisal}}
    if verdict.nonce is not None:
        whole["eat_nonce"] = to_base64url(verdict.nonce)
    if verdict.raw is not None:
        whole["ear_raw_evidence"] = [MEDIA_TYPE, to_base64url(verdict.raw)]
    return whole


def token(verdict: Verdict, key: PrivateKey) -> str:
    """The verdict as a JWT, signed by a verifier's key."""
    return jws.sign(canonical(claims(verdict)), key)


def read(text: str, key: jws.PublicKey) -> dict[str, Any]:
    """The claims of a token that `key` signed. Raises MalformedEvidenceError, ForgedEvidenceError.
    """
    found: dict[str, Any] = json.loads(jws.verify(text.strip(), key))
    return found
