"""A claim: a sentence about the appliance, and how the evidence in a pack bears it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from appliance.attestation.findings import Finding, Outcome
from appliance.auditor.claims.case import Case, LackingError
from appliance.errors import ApplianceError, UncheckedEvidenceError


class Answer(NamedTuple):
    """The outcome of a claim, and why. `but`: the exceptions of a claim that holds, in words."""

    outcome: Outcome
    detail: str
    but: str = ""


@dataclass(frozen=True)
class Claimed(Finding):
    """The finding on a claim. `detail` also names the exceptions in `but`."""

    but: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table. `judge`: its outcome in a case, and why. `rests_on`: claims without
    which it says nothing about the machine. A control that names it also rests on these."""

    name: str
    says: str
    judge: Callable[[Case], Answer]
    rests_on: tuple[str, ...] = ()

    def finding(self, case: Case) -> Claimed:
        """Return the outcome: "fails" where evidence speaks against it, "not checked" where none is
        there.
        """
        try:
            answer = self.judge(case)
        except LackingError as error:
            answer = open_(str(error))
        except UncheckedEvidenceError as error:
            answer = open_(error.summary)
        except ApplianceError as error:
            answer = fails(error.summary)
        parts = [answer.detail, f"but for {answer.but}" if answer.but else ""]
        return Claimed(self.name, answer.outcome, "; ".join(filter(None, parts)), answer.but)


def by_records(judge: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
    """Make a claim that rests on the log's records tell where they are the log's own word."""
    def told(case: Case) -> Answer:
        answer = judge(case)
        return answer._replace(detail=answer.detail + case.own_word) if answer.outcome == "holds" else answer
    return told


def holds(detail: str = "", but: str = "") -> Answer:
    """The evidence bears it out, but for what `but` names."""
    return Answer("holds", detail, but)


def fails(detail: str) -> Answer:
    """The evidence speaks against it."""
    return Answer("fails", detail)


def open_(detail: str) -> Answer:
    """There is nothing to judge by."""
    return Answer("not checked", detail)


def either(yes: bool, held: str, otherwise: str) -> Answer:
    """It holds, or fails."""
    return holds(held) if yes else fails(otherwise)


def asked(yes: bool, held: str, otherwise: str) -> Answer:
    """The policy asks for it, or says nothing of it."""
    return holds(held) if yes else open_(f"the policy does not ask for it: {otherwise}")
