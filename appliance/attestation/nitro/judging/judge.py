"""The judging half of a NitroTPM. AWS's hypervisor signs what booted, and can read what runs: the
best verdict is "measured boot, AWS trusted"."""

from __future__ import annotations

import hmac
from typing import Any

from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.given import Means
from appliance.attestation.case.judge import AuthenticReport, Judge
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.record import Record
from appliance.attestation.findings import Finding, judged, one_of
from appliance.attestation.measured.nitro import NitroPrediction
from appliance.attestation.nitro.judging import abi, verify
from appliance.attestation.nitro.judging.rules import AWS_TRUSTED, RULES
from appliance.attestation.nitro.judging.verify import NitroClaims
from appliance.platforms import NITRO
from appliance.policy.digest import POLICY_PCR, policy_pcr

KIND = "AWS NitroTPM document"
_WARNING = ("AWS TRUSTED: the hypervisor signed this, and whoever runs the hypervisor can read the guest. It protects "
            "from everybody but AWS.")
Findings = tuple[Finding, ...]


def authentic(record: Record, given: Means) -> NitroClaims:
    """The claims of a document whose signature and chain hold; the record tells each step. Raises
    AttestationError."""
    document = abi.parse(given.raw)
    record.claims["claims"] = _described(document)
    record.warnings.append(_WARNING)
    claims = verify.verify(given.raw, at=given.time(NITRO.name), root=given.roots.others.get(NITRO.name, verify.ROOT))
    record.holds("signature", "the certificate in the document signed it")
    record.holds("chain", f"the chain leads to the pinned root {claims.root}")
    return claims


def _described(document: abi.NitroDocument) -> list[tuple[str, Any]]:
    given = [(name, value.hex()) for name in ("public_key", "user_data", "nonce")
             if (value := getattr(document, name)) is not None]
    return [("module_id", document.module_id), ("timestamp", str(document.timestamp)), *given,
            *((f"PCR {number} ({abi.BANK})", value.hex()) for number, value in document.pcrs.items())]


def _verify(record: Record, given: Means) -> AuthenticReport:
    claims = authentic(record, given)
    return AuthenticReport(claims.document.user_data or b"", b"", claims)


def _validate(claims: NitroClaims, expected: Expectations) -> Findings:
    prediction: NitroPrediction | None = expected.own.get(NITRO.name)
    return (*_measured(claims, prediction, expected.policy_sha384), Finding(
        AWS_TRUSTED, "not checked", "AWS's hypervisor signed this, and can read the guest: AWS IS TRUSTED"))


def _measured(claims: NitroClaims, prediction: NitroPrediction | None, policy_sha384: bytes) -> Findings:
    """Judge each predicted register, and PCR 15, which the boot extends with the policy."""
    if prediction is None:
        return (Finding("measurement", "not checked", "no measurements with registers of a NitroTPM were given: "
                        "version 2 has them"),)
    accepted = {**prediction.accepted(), POLICY_PCR: frozenset((policy_pcr(policy_sha384, abi.BANK),))}
    values = claims.document.pcrs
    found = tuple(one_of(f"pcr{number}", values[number], wanted) if number in values
                  else judged(f"pcr{number}", False, "not in the evidence")
                  for number, wanted in sorted(accepted.items()))
    held = all(each.outcome == "holds" for each in found)
    return (*found, judged("measurement", held, "by the registers of the NitroTPM"))


def answers(claims: NitroClaims, nonce: bytes) -> bool:
    """Whether the document was made for a nonce."""
    return claims.document.nonce is not None and hmac.compare_digest(claims.document.nonce, nonce)


def _expect(measurements: Measurements) -> NitroPrediction | None:
    return measurements.nitro_prediction()


JUDGE = Judge(_verify, _validate, lambda claims: f"by the Nitro hypervisor, under {claims.root}", None,
              required=("measurement",), rules=RULES, expect=_expect,
              recognise=lambda data: KIND if data.startswith(abi.STARTS) else None)
