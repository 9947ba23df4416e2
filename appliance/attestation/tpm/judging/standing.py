"""How far a TPM's evidence reaches: its registers, whose the key is, and what that is worth.

A hardware report that binds the key is judged by the policy as any other. On Azure it is of
Microsoft's paravisor, which counts where the policy names it.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.attestation.case.terms import ClientTerms
from appliance.attestation.findings import Finding, judged
from appliance.attestation.paravisor import judge as paravisor
from appliance.attestation.paravisor.judge import Hardware
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.snp.judging.validate import validate as validate_snp
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tpm.judging import registers, validate
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.platforms import SNP

BOUND = "ak-bound-in-hardware"
Findings = tuple[Finding, ...]


def concluded(claims: TpmClaims, common: Findings, own: Findings, asked: ClientTerms) -> Findings:
    """All findings on a TPM's claims: where a client's say more than the platform's own, only the
    former."""
    again = {each.rule for each in common} | {BOUND}
    return (*common, *(each for each in own if each.rule not in again), *_measured(claims, asked),
            *_key(claims, asked))


def _measured(claims: TpmClaims, asked: ClientTerms) -> Findings:
    if asked.measurements is None:
        return (Finding("measurement", "not checked", "no measurements given"),)
    found = registers.judge(claims.pcrs.get("sha256", {}), asked.measurements, asked.policy_sha384, claims.events)
    held = all(each.outcome == "holds" for each in found)
    return (*found, judged("measurement", held, "by the TPM's registers"))


def _key(claims: TpmClaims, asked: ClientTerms) -> Findings:
    """Whose the attestation key is."""
    bound = claims.bound_by
    below = paravisor.judge(bound, asked)
    if bound is not None and below and below[0].outcome == "holds":
        found: list[Finding] = [Finding(BOUND, "holds", paravisor.told(bound)), *below]
    elif isinstance(bound, SnpClaims) and _is_known(bound, asked):
        found = [Finding(BOUND, "holds", paravisor.told(bound)), *(
            each for each in validate_snp(bound, SnpExpectations(), asked.policy.tee.evidence, at=asked.at)
            if each.rule != "measurement")]
    else:
        found = [Finding(BOUND, "not checked", f"{_unbound(bound)}: THE HOST IS TRUSTED"), *below[:1]]
    activation = validate.activation(claims, asked.ek_roots, asked.activated, at=asked.at)
    origin = validate.origin(claims, asked.attestation_keys, bound=found[0].outcome == "holds",
                             activated=activation.outcome == "holds")
    if origin.outcome == "not checked" and asked.any_ak:
        origin = Finding("ak-origin", "not checked", f"ANY KEY WAS ACCEPTED, AS ASKED, for tests: {origin.detail}")
    return (*found, activation, origin)


def _is_known(bound: SnpClaims, asked: ClientTerms) -> bool:
    """Whether the policy takes SEV-SNP, and the guest that names a TPM's key is one of the
    measurements'. Any other may name any key: whoever has such hardware can start a guest of their
    own."""
    return (SNP.name in asked.policy.tee.platforms and asked.measurements is not None
            and bound.report.measurement in asked.measurements.launched(bound.report.measurement).sev_snp_digests())


def _unbound(bound: Hardware | None) -> str:
    if bound is None:
        return "no hardware report names it"
    return (f"a guest of {paravisor.told(bound)} names it that is not the policy's "
            f"({paravisor.measurement(bound).hex()})")


def known_by(outcomes: Mapping[str, Finding]) -> str:
    """Say how the attestation key is known to be a TPM's, by what is strongest, and whose word it
    is on Azure."""
    if outcomes[BOUND].outcome == "holds":
        below = outcomes.get(paravisor.RULE)
        return paravisor.TRUSTED if below is not None and below.outcome == "holds" else ""
    if outcomes["ek-activation"].outcome == "holds":
        return "the TPM is known by activation: its attestation key is beside an endorsement key that a maker certified"
    if outcomes["ak-origin"].outcome != "holds":
        return "the TPM is known by NOTHING: the attestation key may be anybody's"
    if outcomes["ak-origin"].detail.startswith("certificate"):
        return "the TPM is known by the certificate of its attestation key"
    return "the TPM is known by enrolment of its attestation key; it was not challenged"
