"""A claim: a sentence about the appliance, and how the evidence in a pack bears it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.attestation.findings import Finding, Outcome
from appliance.auditor.claims.case import Case, LackingError
from appliance.errors import ApplianceError, UncheckedEvidenceError

Answer = tuple[Outcome, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table. `judge`: its outcome in a case, and why."""

    name: str
    says: str
    judge: Callable[[Case], Answer]

    def finding(self, case: Case) -> Finding:
        """The outcome: "fails" where evidence speaks against it, "not checked" where none is there.
        """
        try:
            outcome, detail = self.judge(case)
        except (LackingError, UncheckedEvidenceError) as error:
            outcome, detail = "not checked", str(error) if isinstance(error, LackingError) else error.summary
        except ApplianceError as error:
            outcome, detail = "fails", error.summary
        return Finding(self.name, outcome, detail)


def by_records(judge: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
    """Make a claim that rests on the log's records tell where they are the log's own word."""
    def told(case: Case) -> Answer:
        outcome, detail = judge(case)
        return outcome, detail + (case.own_word if outcome == "holds" else "")
    return told


def holds(detail: str = "") -> Answer:
    """The evidence bears it out."""
    return "holds", detail


def fails(detail: str) -> Answer:
    """The evidence speaks against it."""
    return "fails", detail


def open_(detail: str) -> Answer:
    """There is nothing to judge by."""
    return "not checked", detail


def either(yes: bool, held: str, otherwise: str) -> Answer:
    """It holds, or fails."""
    return holds(held) if yes else fails(otherwise)


def asked(yes: bool, held: str, otherwise: str) -> Answer:
    """The policy asks for it, or says nothing of it."""
    return holds(held) if yes else open_(f"the policy does not ask for it: {otherwise}")
