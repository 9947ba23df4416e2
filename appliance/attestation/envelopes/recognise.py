"""The kind of a file of evidence, by its bytes alone."""

from __future__ import annotations

from appliance.attestation import evidence
from appliance.attestation.envelopes import registry
from appliance.attestation.simulated import abi as simulated_abi
from appliance.attestation.snp import abi as snp_abi
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm import azure as azure_abi
from appliance.attestation.tpm import evidence as tpm_evidence
from appliance.attestation.x509 import dice as x509dice

SNP, AZURE, TDX, SGX, TPM, CERTIFICATE, APPLIANCE, SIMULATED, TPM_EVIDENCE = (
    "AMD SEV-SNP attestation report", "Azure confidential VM report", "Intel TDX quote", "Intel SGX quote",
    "TPM 2.0 quote", "X.509 certificate", "appliance evidence", "simulated report",
    "TPM evidence of the appliance")
_INTEL_QE = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")  # the vendor of Intel's quoting enclaves, at offset 12
_TEE_TYPE_AT, _TDX_TYPE = slice(4, 8), b"\x81\x00\x00\x00"


def recognise(data: bytes) -> str | None:
    """One of the names above, an envelope's name, or None. A recognised file may still be
    malformed."""
    if data.startswith(simulated_abi.MAGIC):
        return SIMULATED
    if data.startswith(tpm_evidence.MAGIC):
        return TPM_EVIDENCE
    if data.startswith(azure_abi.MAGIC):
        return AZURE
    if data.startswith(tpm_abi.MAGIC):
        return TPM
    if data[12:28] == _INTEL_QE or (data[2:8] == b"\x02\x00" + _TDX_TYPE and data[:2] in (b"\x04\x00", b"\x05\x00")):
        return TDX if data[_TEE_TYPE_AT] == _TDX_TYPE else SGX
    if len(data) >= snp_abi.REPORT_BYTES and _begins_as_snp(data):
        return SNP
    if data.lstrip().startswith(b"-----BEGIN CERTIFICATE-----") or (
            data[:1] == b"\x30" and x509dice.holds_evidence(data)):
        return CERTIFICATE
    envelope = registry.recognise(data)
    if envelope is not None:
        return envelope
    if data.lstrip()[:1] == b"{" and evidence.FORMAT.encode() in data:
        return APPLIANCE
    return SNP if len(data) == snp_abi.REPORT_BYTES else None


def _begins_as_snp(data: bytes) -> bool:
    version, algorithm = data[:4], snp_abi.SIGNATURE_ALGO_AT
    return (int.from_bytes(version, "little") in snp_abi.VERSIONS
            and data[algorithm[0]:algorithm[0] + algorithm[1]] == b"\x01\x00\x00\x00")
