"""Measurements of version 2, as plain values: one row of each kind, as a caller changes it."""

from __future__ import annotations

from typing import Any

from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import Measurements
from tests.support import fake_appliance as fake

FIRMWARE, WHOLE = ["firmware"], ["firmware", "image"]
OLD, ENDORSED = b"\x71" * 48, b"\x72" * 48  # launch digest of a firmware alone, MRTD of an endorsed one


def snp(digest: bytes, **fields: Any) -> dict[str, Any]:
    """A launch digest: of QEMU with kernel hashes, unless another `vmm` is named."""
    whole = fields.get("vmm", "qemu") == "qemu"
    return {"source": "predicted", "covers": WHOLE if whole else FIRMWARE, "svn": None, "firmware_sha256": "00" * 32,
            "firmware_sha384": None, "vmm": "qemu", "vcpus": 4, "cpu_model": "EPYC-v4" if whole else None,
            "guest_features": "0x1", "launch_digest": digest.hex(), "id_block": None, **fields}


def tdx(mrtd: bytes, *rtmr: bytes | None, **fields: Any) -> dict[str, Any]:
    """An MRTD, with four RTMRs or none."""
    registers = [None if each is None else each.hex() for each in rtmr] or [None] * 4
    return {"source": "predicted", "covers": WHOLE if rtmr else FIRMWARE, "svn": None, "firmware_sha256": "00" * 32,
            "firmware_sha384": None, "page_order": "page", "ram_gib": None, "early_accept": None, "mrtd": mrtd.hex(),
            "rtmr": registers, "unverified": [], **fields}


def endorsed(mrtd: bytes, *rtmr: bytes | None, svn: int = 3, **fields: Any) -> dict[str, Any]:
    """The same by an endorsement of Google's."""
    return tdx(mrtd, *rtmr, **{"source": "gce-endorsement", "svn": svn, "firmware_sha256": None,
                               "firmware_sha384": "11" * 48, **fields})


def document(snps: list[dict[str, Any]], tdxs: list[dict[str, Any]], policy: str | None = None) -> dict[str, Any]:
    """A whole file as plain values."""
    return {"format": measurements.SECOND, "build": {"version": "0.1.0", "code_sha384": None, "kernels_sha384": None},
            "image": {"root.img": "00" * 32}, "policy_sha384": policy, "sev_snp": snps, "tdx": tdxs, "tpm": None,
            "nitro": None}


def measured(snps: list[dict[str, Any]], tdxs: list[dict[str, Any]], policy: str | None = None) -> Measurements:
    """The parsed form of it."""
    return measurements.SourcedMeasurements.model_validate(document(snps, tdxs, policy))


def whole() -> dict[str, Any]:
    """One row of each kind."""
    return document(
        [snp(fake.LAUNCH), snp(OLD, vmm="ec2", source="ec2")],
        [tdx(fake.MRTD, None, *fake.RTMRS[1:3], None), endorsed(ENDORSED, ram_gib=16, early_accept=False)])
