"""The expectations of a verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from appliance.attestation.case.machine import MachineList
from appliance.policy.schema.platform import Requirements


@dataclass(frozen=True)
class Expectations:
    """The expectations of the verifier. `platforms` and `policy_sha384` are always checked, `nonce`
    unless it is None.

    `models` maps each policy name to its plaintext SHA-256 and must match the loaded set exactly,
    but for those that it `may_lack`; None is not checked. `tls_spki_sha256` is the key of the
    connection at hand (32 bytes), `session` the exporter of its TLS session for the nonce (32
    bytes); `self_test_sha384` 48 bytes.

    `release_spki_sha256` (32 bytes) asks for a `key-release` statement about that key in place of a
    `serve/v1` one. `session` is then of the connection to the broker, which shows the key
    `broker_spki_sha256` (32 bytes).

    `hardware` is the policy's `tee.evidence`, `own` the expected measurements by platform, `at` the
    time to judge the age of collateral by; they matter for hardware platforms only. `baked`: the
    images that `own` names have the policy in them. A launch field of zeros, which names no other,
    will then do where the image is proved.

    `machines` is the list that the policy demands, None if it is not at hand. `endorsement` (32
    bytes) names the endorsement key of a TPM that has shown, by a challenge, to hold it beside the
    key that quoted.
    """

    platforms: frozenset[str]
    nonce: bytes | None
    policy_sha384: bytes
    models: Mapping[str, bytes] | None = None
    may_lack: frozenset[str] = frozenset()
    tls_spki_sha256: bytes | None = None
    session: bytes | None = None
    self_test_sha384: bytes | None = None
    release_spki_sha256: bytes | None = None
    broker_spki_sha256: bytes | None = None
    hardware: Requirements = field(default_factory=Requirements)
    own: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    baked: bool = False
    machines: MachineList | None = None
    endorsement: bytes | None = None
