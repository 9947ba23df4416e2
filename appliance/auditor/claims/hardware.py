"""Claims about what ran: the client's own verdict on each piece of evidence, rule by rule."""

from __future__ import annotations

from collections.abc import Callable

from appliance.attestation.judge.halves import JUDGES
from appliance.auditor.claims.case import Case
from appliance.auditor.claims.claim import Answer, Claim, fails, holds, open_
from appliance.client.verdict import (
    AWS_TRUSTED,
    FIRMWARE_PROVED,
    HOST_TRUSTED,
    INVALID,
    NOT_MET,
    SIMULATED,
    VERIFIED,
    Verdict,
)
from appliance.codec.printable import quantity

VERIFIED_CLAIM = "evidence-verified"
_WEAK = {SIMULATED: "the evidence is simulated: anybody can write it",
         HOST_TRUSTED: "the host is trusted: whoever owns it can write this evidence",
         FIRMWARE_PROVED: "only the firmware is proved: any tenant of the cloud can write this evidence",
         AWS_TRUSTED: "AWS is trusted: its hypervisor writes this evidence, and can read the machine"}
_OPENINGS = ("debug", "migration")  # rules that hold with a detail where the policy accepts what they found


def _verified(case: Case) -> Answer:
    wrong = [each for each in case.verdicts.values() if each.status in (INVALID, NOT_MET)]
    if wrong:
        return fails(f"{wrong[0].target}: {wrong[0].status}: {wrong[0].reason}")
    less = [each for each in case.verdicts.values() if each.status != VERIFIED]
    if less:
        return open_(f"{less[0].target}: {less[0].status}: {less[0].reason}")
    for verdict in case.verdicts.values():
        if (found := _outcome(verdict, "debug"))[0] == "fails":
            return fails(f"{verdict.target}: {found[1]}")
    platforms = sorted({str(each.platform) for each in case.verdicts.values()})
    return holds(f"by {_pieces(case)}, on {', '.join(platforms)}")


def _pieces(case: Case) -> str:
    return f"{quantity(len(case.verdicts), 'piece')} of evidence"


def _by(rules: Callable[[Verdict], tuple[str, ...]]) -> Callable[[Case], Answer]:
    """Return a claim that rests on rules of the verifier: each must hold for each piece of
    evidence, and hardware that its host cannot read must be behind it."""
    def judge(case: Case) -> Answer:
        left = []
        for verdict in case.verdicts.values():
            for name in rules(verdict):
                outcome, detail = _outcome(verdict, name)
                if outcome == "fails":
                    return fails(f"{verdict.target}: {name}: {detail}")
                if outcome != "holds":
                    left.append(f"{verdict.target}: {name}: {detail or 'not checked'}")
            if verdict.status in _WEAK:
                left.append(f"{verdict.target}: {_WEAK[verdict.status]}")
        return open_(left[0]) if left else holds(f"by {_pieces(case)}")
    return judge


def _outcome(verdict: Verdict, name: str) -> tuple[str, str]:
    """Return the outcome of a rule in a verdict; "fails" where evidence itself is not authentic,
    and where the policy accepts that the host may open the machine."""
    if verdict.status == INVALID:
        return "fails", verdict.reason
    found = next((each for each in verdict.findings if each.rule == name), None)
    if found is None:
        return "not checked", ""
    if found.rule in _OPENINGS and found.outcome == "holds" and found.detail:
        return "fails", f"{found.detail}, and the policy accepts it"
    return found.outcome, found.detail


def _image(verdict: Verdict) -> tuple[str, ...]:
    """Return the rules that prove an image on the evidence's platform."""
    half = JUDGES.get(str(verdict.platform))
    return ("measurement",) if half is None or not half.image else half.image


def _shown(name: str, says: str, *rules: str, of: Callable[[Verdict], tuple[str, ...]] | None = None) -> Claim:
    return Claim(name, says, _by(of or (lambda _: rules)), rests_on=(VERIFIED_CLAIM,))


CLAIMS = (
    Claim(VERIFIED_CLAIM, "Genuine hardware, closed to its host, ran this image under this policy.", _verified),
    _shown("evidence-policy", "The evidence binds this policy.", "policy"),
    _shown("evidence-measurement", "The measured launch is the predicted one.", of=_image),
    _shown("evidence-models", "The models that were loaded are those that the policy pins.", "models"),
    _shown("evidence-debug", "The host may neither debug nor move the machine.", *_OPENINGS),
    _shown("evidence-self-test", "The boot's self-test gave a digest that the judge expects.", "self-test"),
    _shown("evidence-fresh", "The evidence was made after the judge chose a nonce.", "nonce"),
)
