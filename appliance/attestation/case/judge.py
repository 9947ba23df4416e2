"""The judging half of a platform: its evidence to claims, and its claims to findings.

Each platform's module for it has one `JUDGE`; `appliance/platforms.py` names that module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.given import Means
from appliance.attestation.case.machine import Names
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.record import Record
from appliance.attestation.case.rule import Rule
from appliance.attestation.case.terms import ChallengeOutcome, ClientTerms
from appliance.attestation.findings import Finding
from appliance.policy.schema import Policy


@dataclass(frozen=True)
class AuthenticReport:
    """An authentic report's report data, launch field and claims."""

    report_data: bytes
    host_data: bytes
    hardware: Any = None


Findings = tuple[Finding, ...]
Validate = Callable[[Any, Expectations], Findings]


def _nothing(_given: object) -> None:
    return None


def _nameless(_claims: object, _expected: Expectations) -> Names:
    return "evidence of this platform names no machine"


def _together(_claims: object, common: Findings, own: Findings, _asked: ClientTerms) -> Findings:
    return (*common, *own)


def _no_remarks(_policy: Policy) -> Findings:
    return ()


def _no_endorsement(_claims: object, _activated: ChallengeOutcome | None) -> None:
    return None


def _no_words(_outcomes: Mapping[str, Finding]) -> str:
    return ""


@dataclass(frozen=True)
class Judge:
    """The judging half of a platform: `verify` gives authentic claims and records its steps,
    `validate` judges them by a policy.

    `signer` says in words who signed authentic claims. `launch` is what the launch field must hold
    for a policy digest of 48 bytes; None where there is no such field. `image` names the findings
    that prove an image, and with its verity root the policy in it. `firmware` is the rule that
    holds where a firmware is proved, and what it booted is not. `required` names the rules that
    must hold for a good verdict, `rules` has the words of those that no other platform has.
    `recognise` gives the kind of a file that is the platform's bare report. `expect` gives the
    expectations that `validate` finds in `Expectations.own`. `names` gives the names of the machine
    that claims are of, or why they show none.

    The rest is a client's. `concluded` gives all findings from those by common rules and those by
    the platform's own. `remarks` gives remarks on a policy that takes the platform. `endorsement`
    gives the name of the endorsement key that a challenge has shown. `challenged` names the rules
    that must hold where a challenge was demanded, `awaited` those that only a challenge can show.
    `lifted_by` is the rule that makes evidence of a platform that is no TEE as good as a TEE's.
    `known_by` says how its signer is known. `fields` has the field that a rule compares, of policy
    or evidence. `quiet` names rules that nobody needs to hear of where they were not checked.
    """

    verify: Callable[[Record, Means], AuthenticReport]
    validate: Validate
    signer: Callable[[Any], str]
    launch: Callable[[bytes], bytes] | None
    image: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    recognise: Callable[[bytes], str | None] = _nothing
    expect: Callable[[Measurements], Any] = _nothing
    names: Callable[[Any, Expectations], Names] = _nameless
    firmware: str = ""
    concluded: Callable[[Any, Findings, Findings, ClientTerms], Findings] = _together
    remarks: Callable[[Policy], Findings] = _no_remarks
    endorsement: Callable[[Any, ChallengeOutcome | None], bytes | None] = _no_endorsement
    challenged: tuple[str, ...] = ()
    awaited: frozenset[str] = frozenset()
    lifted_by: str = ""
    known_by: Callable[[Mapping[str, Finding]], str] = _no_words
    fields: Mapping[str, str] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()


def by_time(validate: Callable[[Any, Expectations, datetime], Findings]) -> Validate:
    """A validator that judges the age of collateral, and so needs a time."""
    def judge(claims: Any, expected: Expectations) -> Findings:
        if expected.at is None:
            return (Finding("hardware", "fails", "no time to judge the age of collateral by"),)
        return validate(claims, expected, expected.at)

    return judge
