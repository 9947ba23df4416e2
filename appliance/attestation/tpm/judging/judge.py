"""The judging half of a TPM. Alone it gives "measured boot, host trusted"."""

from __future__ import annotations

from appliance.attestation.case import machine
from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.given import Means
from appliance.attestation.case.judge import AuthenticReport, Judge
from appliance.attestation.case.machine import EK, MachineId, Names
from appliance.attestation.case.record import Record
from appliance.attestation.findings import Finding
from appliance.attestation.tpm import abi, container
from appliance.attestation.tpm.judging import azure, origin, standing, validate
from appliance.attestation.tpm.judging.rules import RULES
from appliance.attestation.tpm.judging.validate import TpmExpectations
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.platforms import TPM

QUOTE, AZURE, EVIDENCE = "TPM 2.0 quote", "Azure confidential VM report", "TPM evidence of the appliance"


def _verify(_record: Record, given: Means) -> AuthenticReport:
    found = origin.verify(given.raw, given.bound, given.collateral, at=given.at, roots=given.roots)
    return AuthenticReport(given.bound, b"", found)


def _validate(claims: TpmClaims, expected: Expectations) -> tuple[Finding, ...]:
    return validate.validate(claims, expected.own.get(TPM.name, TpmExpectations()), expected.hardware.tpm)


def _names(_claims: TpmClaims, expected: Expectations) -> Names:
    """Return the TPM's name. A certificate in the evidence is anybody's to put there; a challenge
    shows whose key it is."""
    if expected.endorsement is None:
        return "no challenge has shown which endorsement key is in the TPM: it takes EK roots, and the running machine"
    return (MachineId(EK, expected.endorsement),)


def _recognise(data: bytes) -> str | None:
    kinds = ((container.MAGIC, EVIDENCE), (azure.MAGIC, AZURE), (abi.MAGIC, QUOTE))
    return next((kind for magic, kind in kinds if data.startswith(magic)), None)


JUDGE = Judge(_verify, _validate, lambda _claims: "by the attestation key in the evidence", None,
              required=("measurement", "ak-origin"), rules=RULES, recognise=_recognise,
              names=_names, concluded=standing.concluded, endorsement=validate.endorsement,
              challenged=("ek-activation",), awaited=frozenset({machine.RULE}), lifted_by=standing.BOUND,
              known_by=standing.known_by, fields={"pcrs-covered": "tee.evidence.tpm.pcrs",
                                            "paravisor": "tee.evidence.azure.paravisor_measurements"})
