"""The judging half of a platform: its evidence to claims, and its claims to findings.

Each platform's module for it has one `JUDGE`; `appliance/platforms.py` names that module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from appliance.attestation.case.expected import Expected
from appliance.attestation.case.given import Given
from appliance.attestation.case.machine import Names
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.record import Record
from appliance.attestation.case.rule import Rule
from appliance.attestation.findings import Finding


@dataclass(frozen=True)
class AuthenticReport:
    """An authentic report's report data, launch field and claims."""

    report_data: bytes
    host_data: bytes
    hardware: Any = None


Validate = Callable[[Any, Expected], tuple[Finding, ...]]


def _nothing(_given: object) -> None:
    return None


def _nameless(_claims: object, _expected: Expected) -> Names:
    return "evidence of this platform names no machine"


@dataclass(frozen=True)
class Judge:
    """The judging half of a platform: `verify` gives authentic claims and records its steps,
    `validate` judges them by a policy.

    `signer` says in words who signed authentic claims. `launch` is what the launch field must hold
    for a policy digest of 48 bytes; None where there is no such field. `image` names the findings
    that prove an image, and with its verity root the policy in it. `required` names the rules that
    must hold for a good verdict, `rules` has the words of those that no other platform has.
    `recognise` gives the kind of a file that is the platform's bare report. `expect` gives what
    `validate` finds in `Expected.own`. `names` gives the names of the machine that claims are of,
    or why they show none.
    """

    verify: Callable[[Record, Given], AuthenticReport]
    validate: Validate
    signer: Callable[[Any], str]
    launch: Callable[[bytes], bytes] | None
    image: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    recognise: Callable[[bytes], str | None] = _nothing
    expect: Callable[[Measurements], Any] = _nothing
    names: Callable[[Any, Expected], Names] = _nameless


def by_time(validate: Callable[[Any, Expected, datetime], tuple[Finding, ...]]) -> Validate:
    """A validator that judges the age of collateral, and so needs a time."""
    def judge(claims: Any, expected: Expected) -> tuple[Finding, ...]:
        if expected.at is None:
            return (Finding("hardware", "fails", "no time to judge the age of collateral by"),)
        return validate(claims, expected, expected.at)

    return judge
