"""The judging half of the simulated platform. SIMULATED: PROVES NOTHING."""

from __future__ import annotations

from appliance.attestation.case.given import Means
from appliance.attestation.case.judge import AuthenticReport, Judge
from appliance.attestation.case.record import Record
from appliance.attestation.simulated import abi
from appliance.attestation.simulated.judging import verify
from appliance.platforms import SIMULATED
from appliance.policy.digest import host_data

KIND = "simulated report"


def _verify(record: Record, given: Means) -> AuthenticReport:
    record.warnings.append(SIMULATED.notice)
    return AuthenticReport(*verify.verify(given.raw))


JUDGE = Judge(_verify, lambda _claims, _expected: (), lambda _claims: "by a throw-away key: PROVES NOTHING", host_data,
              image=("launch-policy",), recognise=lambda data: KIND if data.startswith(abi.MAGIC) else None)
