"""Fuzz target: measurements and portable references from strangers. What parses has one form, and judging any
registers by it ends."""

from __future__ import annotations

from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import SourcedMeasurements
from appliance.attestation.tpm.judging import registers
from appliance.codec.canonical import canonical
from appliance.errors import AttestationError
from tests.support import expected, references, rows


def fuzz(data: bytes) -> None:
    """Parse; what is accepted must be the canonical form of itself."""
    try:
        found = measurements.parse(data)
    except AttestationError:
        return
    if found.to_json() != data:
        raise AssertionError("two texts for one value")
    registers.judge(expected.values(), found)
    firmware = {bytes.fromhex(each.launch_digest) for each in found.snp_rows() if not each.image}
    if firmware & found.sev_snp_digests():
        raise AssertionError("a digest of firmware alone stands for an image")


def seeds() -> list[bytes]:
    """A whole file of each version, one with nothing that can be absent, and a portable reference."""
    whole = expected.image()
    return [whole.to_json(), whole.model_copy(update={"sev_snp": (), "tdx": (), "tpm": None}).to_json(),
            SourcedMeasurements.model_validate(rows.whole()).to_json(),
            *(canonical(references.document(firmware_rows=[each])) for each in rows.whole()["sev_snp"][1:])]
