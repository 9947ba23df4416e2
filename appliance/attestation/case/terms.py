"""A client's terms for evidence, beside the rules of every platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from appliance.attestation.case.measurements import Measurements
from appliance.policy.schema import Policy


@dataclass(frozen=True)
class EkRoots:
    """Whom a verifier believes about TPMs: `pins` (SHA-256 of a certificate to its name) are
    self-signed authorities, and endorsement key certificates themselves; `certificates` is
    everything to build chains with."""

    pins: Mapping[str, str]
    certificates: tuple[x509.Certificate, ...]


@dataclass(frozen=True)
class ChallengeOutcome:
    """The result of a challenge: the key of this name is in the TPM whose endorsement key has this
    certificate."""

    name: bytes
    certificate: bytes  # DER


@dataclass(frozen=True)
class ClientTerms:
    """The terms of a client. `measurements` of the image are None where none are given.

    `attestation_keys`: a TPM's keys that the verifier enrolled, by SHA-256 of their
    SubjectPublicKeyInfo. `ek_roots`: the makers of TPMs, one of which must have certified the
    endorsement key; None: no challenge is needed. `activated`: the outcome of a challenge.
    `any_ak`: a key needs nobody to vouch for it, for tests.
    """

    policy: Policy
    policy_sha384: bytes
    at: datetime
    measurements: Measurements | None = None
    attestation_keys: frozenset[bytes] = frozenset()
    ek_roots: EkRoots | None = None
    activated: ChallengeOutcome | None = None
    any_ak: bool = False
