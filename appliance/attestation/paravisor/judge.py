"""Microsoft's paravisor, which runs below a confidential VM on Azure and holds its TPM.

Hardware proves which paravisor started, and the paravisor says what booted above it. So what
booted is known as far as the paravisor is trusted, and a policy names the trusted ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.attestation.case.terms import ClientTerms
from appliance.attestation.findings import Finding, judged
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.snp.judging.validate import validate as validate_snp
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tdx.judging.validate import TdxExpectations
from appliance.attestation.tdx.judging.validate import validate as validate_tdx
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.policy.schema.platform import Azure

_OWN_LEVEL = 0  # the guest above could have a report of its own name any key
RULE, TRUSTED = "paravisor", "Microsoft's paravisor trusted"
Hardware = SnpClaims | TdxClaims
# A paravisor's launch says nothing of an image, and the paravisor fills these fields.
_NOT_OF_A_PARAVISOR = frozenset({"measurement", "firmware", "mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3", "report-data",
                                 "host-data", "mrconfigid", "mrowner", "mrownerconfig", "endorsement"})


def measurement(bound: Hardware) -> bytes:
    """The launch digest or MRTD of the guest that names a TPM's key, 48 bytes."""
    return bound.quote.body.mr_td if isinstance(bound, TdxClaims) else bound.report.measurement


def told(bound: Hardware) -> str:
    """The hardware in words."""
    return "Intel TDX" if isinstance(bound, TdxClaims) else f"AMD SEV-SNP, {bound.product}"


def judge(bound: Hardware | None, asked: ClientTerms) -> tuple[Finding, ...]:
    """Judge the paravisor by the policy's list, and its hardware by the policy's demands; nothing
    where the policy has no list. Without revocation lists of AMD's it is not checked."""
    azure = asked.policy.tee.evidence.azure
    if azure is None:
        return ()
    if bound is None:
        return (Finding(RULE, "not checked", "no report of hardware names the TPM's key"),)
    if isinstance(bound, TdxClaims):
        hardware = validate_tdx(bound, TdxExpectations(), asked.policy.tee.evidence, at=asked.at)
    else:
        hardware = validate_snp(bound, SnpExpectations(), asked.policy.tee.evidence, at=asked.at)
    return (_listed(bound, azure, hardware), Finding(
        "paravisor-report", "not checked", "it names the TPM's key and no nonce; the VM's configuration is not read"),
            *(each for each in hardware if each.rule not in _NOT_OF_A_PARAVISOR))


def _listed(bound: Hardware, azure: Azure, hardware: Iterable[Finding]) -> Finding:
    found = measurement(bound).hex()
    if isinstance(bound, SnpClaims) and bound.report.vmpl != _OWN_LEVEL:
        return judged(RULE, False, f"the report was asked for at VMPL {bound.report.vmpl}, where the guest is; the "
                      f"paravisor has VMPL {_OWN_LEVEL}")
    if isinstance(bound, SnpClaims) and any(bound.report.host_data):
        return judged(RULE, False, f"HOST_DATA is {bound.report.host_data.hex()}; below a paravisor it is zero")
    if found not in azure.paravisor_measurements:
        return judged(RULE, False, f"found {found}, expected {' or '.join(azure.paravisor_measurements)}")
    if azure.id_key_sha384 is not None:
        signer = None if isinstance(bound, TdxClaims) else bound.report.id_key_digest.hex()
        if signer != azure.id_key_sha384:
            return judged(RULE, False, f"ID key: found {signer or 'nothing, since a TD has none'}, expected "
                          f"{azure.id_key_sha384}")
    unchecked = [each.detail for each in hardware if (each.rule, each.outcome) == ("revocation", "not checked")]
    if unchecked:
        return Finding(RULE, "not checked", f"revocation: {unchecked[0] or 'no list of AMD is at hand'}")
    return judged(RULE, True, f"{TRUSTED}: {found}, by the policy's list from {azure.source}")
