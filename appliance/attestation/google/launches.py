"""Rows of what Google endorses: a firmware, and no image."""

from __future__ import annotations

from appliance.attestation.google.endorsement import LaunchEndorsement
from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.second import FIRMWARE, SnpRow, TdxRow

UNVERIFIED = (
    "MRTD: Google's word in its endorsement, unless page_order says that it was also computed from the firmware",
    "RTMR 1 and RTMR 2 are for a boot from the image's disk; their order was compared with public logs of Google's",
    "RTMR 1: values with one and with two separators; no log with two was at hand",
)


def tdx_rows(said: LaunchEndorsement) -> tuple[TdxRow, ...]:
    """Return the MRTDs, each of its shape."""
    return tuple(TdxRow(
        source="gce-endorsement", covers=FIRMWARE, svn=said.tdx_svn, firmware_sha256=None,
        firmware_sha384=said.firmware_sha384.hex(), page_order=None, ram_gib=launch.ram_gib,
        early_accept=launch.early_accept if launch.ram_gib else None, mrtd=launch.mrtd.hex(),
        rtmr=(None, None, None, None), unverified=UNVERIFIED) for launch in said.tdx)


def snp_rows(said: LaunchEndorsement) -> tuple[SnpRow, ...]:
    """Return the launch digests, but for those of more virtual CPUs than a row may have."""
    return tuple(SnpRow(
        source="gce-endorsement", covers=FIRMWARE, svn=said.snp_svn, firmware_sha256=None,
        firmware_sha384=said.firmware_sha384.hex(), vmm="gce", vcpus=vcpus, cpu_model=None, guest_features="0x1",
        launch_digest=digest.hex(), id_block=None) for vcpus, digest in sorted(said.snp.items()) if vcpus <= MAX_VCPUS)
