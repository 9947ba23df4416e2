"""What SEV-SNP and TDX evidence must show for an image: measurements as the expectations of the two validators."""

from __future__ import annotations

from dataclasses import replace

from appliance.attestation.judge.measurements import Measurements
from appliance.attestation.snp.validate import SnpExpected
from appliance.attestation.tdx.validate import TdxExpected


def expect_snp(measurements: Measurements, expected: SnpExpected | None = None) -> SnpExpected:
    """`expected` with the image's launch digests; an image without any accepts no SEV-SNP report."""
    return replace(expected or SnpExpected(), measurements=measurements.sev_snp_digests())


def expect_tdx(measurements: Measurements, expected: TdxExpected | None = None) -> TdxExpected:
    """`expected` with the image's MRTDs and the RTMRs that are predicted; an image without any accepts no TDX quote."""
    return replace(expected or TdxExpected(), mr_tds=measurements.tdx_mrtds(), rtmrs=measurements.tdx_rtmrs())
