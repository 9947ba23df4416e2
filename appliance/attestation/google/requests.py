"""The two addresses at which Google publishes: an endorsement by its MRTD, and the root above it."""

from __future__ import annotations

from appliance.attestation.google.endorsement import ROOT_FILE, ROOT_URL
from appliance.attestation.x509.judging.requests import Request

BUCKET = "https://storage.googleapis.com/gce_tcb_integrity/ovmf_x64_csm"


def of_tdx(mrtd: bytes) -> tuple[Request, Request]:
    """Requests for what Google says of an MRTD."""
    name = f"{mrtd.hex()}.binarypb"
    return (Request(f"{BUCKET}/tdx/{name}", name, "Google's endorsement of the firmware", "endorsement"), root())


def of_snp(launch_digest: bytes) -> tuple[Request, Request]:
    """Requests for what Google says of a launch digest."""
    name = f"{launch_digest.hex()}.binarypb"
    return (Request(f"{BUCKET}/sevsnp/{name}", name, "Google's endorsement of the firmware", "endorsement"), root())


def root() -> Request:
    """The request for the root certificate."""
    return Request(ROOT_URL, ROOT_FILE, "the root above Google's endorsements", "certificates")


def firmware(sha384: bytes) -> str:
    """The address of the firmware file itself, by the digest in its endorsement."""
    return f"{BUCKET}/{sha384.hex()}.fd"
