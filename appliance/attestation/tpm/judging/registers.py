"""PCR values against what an image is known to measure: every register that says what booted must
be shown.

A register that the evidence does not show fails, so that leaving one out is no way around it. PCR 0
and PCR 7 depend on firmware and machine shape: they must both be those of one recorded shape.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from appliance.attestation.case.event_log import EV_NO_ACTION, Event
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.findings import Finding, judged, one_of
from appliance.attestation.measured.first import GOLDEN_PCRS, PcrEvent, TpmPrediction
from appliance.policy.digest import POLICY_PCR, policy_pcr

NOT_PREDICTED = "the measurements hold no TPM prediction of this image"


def replay(events: Iterable[PcrEvent]) -> dict[int, bytes]:
    """The registers (SHA-256) that predicted events give, from zero (TCG PC Client profile, extend
    operation)."""
    values: dict[int, bytes] = {}
    for event in events:
        before = values.get(event.pcr, bytes(32))
        values[event.pcr] = hashlib.sha256(before + bytes.fromhex(event.sha256)).digest()
    return values


def judge(values: Mapping[int, bytes], measurements: Measurements, policy_sha384: bytes | None = None,
          log: Iterable[Event] = ()) -> tuple[Finding, ...]:
    """One finding for each register, on `values`: authentic SHA-256 PCRs, from a quote that covers
    them.

    Rules are `pcr2` to `pcr13`, `golden-pcrs` for 0 and 7 together, and, where the policy (48
    bytes) is given, `pcr15`, which the boot extends with it. Absent registers fail. A `log` whose
    replay gives `values` tells people, in the detail of a register that fails, which event is
    another than predicted; it decides nothing.
    """
    tpm = measurements.tpm
    if tpm is None:
        return (judged("pcrs-predicted", False, NOT_PREDICTED),)
    accepted = dict(tpm.accepted())
    if policy_sha384 is not None:
        accepted[POLICY_PCR] = frozenset((policy_pcr(policy_sha384),))
    events = list(log)
    registers = (_explained(_register(number, values, wanted), number, events, tpm)
                 for number, wanted in sorted(accepted.items()))
    return (*registers, _golden(values, tpm))


def _register(number: int, values: Mapping[int, bytes], wanted: frozenset[bytes]) -> Finding:
    if number not in values:
        return judged(f"pcr{number}", False, "not in the evidence")
    return one_of(f"pcr{number}", values[number], wanted)


def _golden(values: Mapping[int, bytes], tpm: TpmPrediction) -> Finding:
    absent = [number for number in GOLDEN_PCRS if number not in values]
    if absent:
        return judged("golden-pcrs", False, f"PCR {', '.join(map(str, absent))} not in the evidence")
    for shape in tpm.golden:
        if all(hmac.compare_digest(values[number], bytes.fromhex(shape.pcrs[str(number)])) for number in GOLDEN_PCRS):
            return judged("golden-pcrs", True, shape.machine)
    known = ", ".join(shape.machine for shape in tpm.golden) or "none"
    found = ", ".join(f"PCR {number} {values[number].hex()}" for number in GOLDEN_PCRS)
    return judged("golden-pcrs", False, f"{found}: of no recorded machine; recorded: {known}")


def _explained(finding: Finding, number: int, log: Iterable[Event], tpm: TpmPrediction) -> Finding:
    """A finding that fails with the first event that departs from the predicted ones, of a register
    that both speak of (the boot extends some after the firmware's log has ended)."""
    found = [each.digests["sha256"] for each in log
             if each.register == number and each.kind != EV_NO_ACTION and "sha256" in each.digests]
    wanted = [each for each in tpm.events if each.pcr == number]
    if finding.outcome != "fails" or not found or not wanted:
        return finding
    difference = _difference(found, wanted)
    return Finding(finding.rule, finding.outcome, f"{finding.detail}; {difference}" if difference else finding.detail)


def _difference(found: list[bytes], wanted: list[PcrEvent]) -> str:
    for at, event in enumerate(wanted):
        if at >= len(found):
            return f"event {at} is absent: {event.what}"
        if found[at].hex() != event.sha256:
            return f"event {at} differs: {event.what}: found {found[at].hex()}, expected {event.sha256}"
    return f"events more than predicted: {len(found) - len(wanted)}" if len(found) > len(wanted) else ""
