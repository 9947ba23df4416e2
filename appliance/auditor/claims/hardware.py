"""Claims about what ran: the client's own verdict on each piece of evidence, rule by rule."""

from __future__ import annotations

from collections.abc import Callable

from appliance.auditor.claims.case import Case
from appliance.auditor.claims.claim import Answer, Claim, fails, holds, open_
from appliance.client.verdict import INVALID, NOT_MET, VERIFIED, Verdict


def _verified(case: Case) -> Answer:
    wrong = [each for each in case.verdicts.values() if each.status in (INVALID, NOT_MET)]
    if wrong:
        return fails(f"{wrong[0].target}: {wrong[0].status}: {wrong[0].reason}")
    less = [each for each in case.verdicts.values() if each.status != VERIFIED]
    if less:
        return open_(f"{less[0].target}: {less[0].status}: {less[0].reason}")
    platforms = sorted({str(each.platform) for each in case.verdicts.values()})
    return holds(f"{len(case.verdicts)} of {len(case.verdicts)}, on {', '.join(platforms)}")


def _rule(*names: str) -> Callable[[Case], Answer]:
    """A claim that rests on rules of the verifier: each must hold for each piece of evidence."""
    def judge(case: Case) -> Answer:
        open_rules = []
        for verdict in case.verdicts.values():
            for name in names:
                outcome, detail = _outcome(verdict, name)
                if outcome == "fails":
                    return fails(f"{verdict.target}: {name}: {detail}")
                if outcome != "holds":
                    open_rules.append(f"{verdict.target}: {name}: {detail or 'not checked'}")
        return open_(open_rules[0]) if open_rules else holds(f"{len(case.verdicts)} of {len(case.verdicts)}")
    return judge


def _outcome(verdict: Verdict, name: str) -> tuple[str, str]:
    """The outcome of a rule in a verdict; "fails" where evidence itself is not authentic."""
    if verdict.status == INVALID:
        return "fails", verdict.reason
    found = next((each for each in verdict.findings if each.rule == name), None)
    return ("not checked", "") if found is None else (found.outcome, found.detail)


CLAIMS = (
    Claim("evidence-verified", "Genuine hardware, closed to its host, ran this image under this policy.", _verified),
    Claim("evidence-policy", "The evidence binds this policy.", _rule("policy")),
    Claim("evidence-measurement", "The measured launch is the predicted one.", _rule("measurement")),
    Claim("evidence-models", "The models that were loaded are those that the policy pins.", _rule("models")),
    Claim("evidence-debug", "The host may neither debug nor move the machine.", _rule("debug", "migration")),
    Claim("evidence-self-test", "The boot's self-test gave a digest that the judge expects.", _rule("self-test")),
    Claim("evidence-fresh", "The evidence was made after the judge chose a nonce.", _rule("nonce")),
)
