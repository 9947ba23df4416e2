"""The expectations of a verifier, and those of SEV-SNP and TDX evidence for an image of known
measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from appliance.attestation.judge.measurements import Measurements
from appliance.attestation.snp.validate import SnpExpected
from appliance.attestation.tdx.validate import TdxExpected
from appliance.attestation.tpm.validate import TpmExpected
from appliance.policy.schema.platform import Evidence


@dataclass(frozen=True)
class Expected:
    """The expectations of the verifier. `platforms` and `policy_sha384` are always checked, `nonce`
    unless it is None.

    `models` maps each policy name to its plaintext SHA-256 and must match the loaded set exactly;
    None is not checked. `tls_spki_sha256` is the key of the connection at hand (32 bytes);
    `self_test_sha384` 48 bytes. `release_spki_sha256` (32 bytes) asks for a `key-release/v1`
    statement about that key in place of a `serve/v1` one. `hardware` is the policy's
    `tee.evidence`, `snp`, `tdx` and `tpm` the expected measurements, `at` the time to judge the age
    of collateral by; they matter for hardware platforms only. `baked`: the images that `snp` and
    `tdx` name have the policy in them, so that a launch field of zeros, which names no other, will
    do where the image is proved.
    """

    platforms: frozenset[str]
    nonce: bytes | None
    policy_sha384: bytes
    models: Mapping[str, bytes] | None = None
    tls_spki_sha256: bytes | None = None
    self_test_sha384: bytes | None = None
    release_spki_sha256: bytes | None = None
    hardware: Evidence = field(default_factory=Evidence)
    snp: SnpExpected = field(default_factory=SnpExpected)
    tdx: TdxExpected = field(default_factory=TdxExpected)
    tpm: TpmExpected = field(default_factory=TpmExpected)
    at: datetime | None = None
    baked: bool = False


def expect_snp(measurements: Measurements, expected: SnpExpected | None = None) -> SnpExpected:
    """`expected` with the image's launch digests; an image without any accepts no SEV-SNP report.
    """
    return replace(expected or SnpExpected(), measurements=measurements.sev_snp_digests())


def expect_tdx(measurements: Measurements, expected: TdxExpected | None = None) -> TdxExpected:
    """`expected` with the image's MRTDs and the RTMRs that are predicted; an image without any
    accepts no TDX quote."""
    return replace(expected or TdxExpected(), mr_tds=measurements.tdx_mrtds(), rtmrs=measurements.tdx_rtmrs())
