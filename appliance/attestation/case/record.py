"""The record of judging one piece of evidence: each step with its outcome, and all that the
evidence says.

Verification writes the record as it goes, and checks every signature once. A strict verdict is the
record's outcome, and explaining is printing the record.

Genuine is not acceptable: it means that the vendor's hardware said it. A policy decides whether its
claims are the wanted ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.attestation.case import event_log
from appliance.attestation.case.machine import Names
from appliance.attestation.findings import Finding
from appliance.codec.printable import plain
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError

Authenticity = Literal["genuine", "not genuine", "cannot tell"]
EXIT_CODES: dict[Authenticity, int] = {"genuine": 0, "not genuine": 1, "cannot tell": 2}
_AGAINST = (ForgedEvidenceError, MalformedEvidenceError)


@dataclass
class Record:
    """`steps` are the checks in their order, `claims` what the evidence says in its vendor's terms:
    JSON, by section.

    `conclusion` is why the evidence is genuine, empty until everything held; `stopped` is the error
    that ended it. `names` are those of the machine, by authentic claims. `hardware` is the report
    or quote, and `authentic` its claims in their platform's form, once they are proved.
    """

    kind: str
    steps: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    claims: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    conclusion: str = ""
    stopped: AttestationError | None = None
    names: Names | None = None
    hardware: bytes = b""
    authentic: object | None = None

    def holds(self, rule: str, told: str) -> None:
        """Record a check that held, in words."""
        self.steps.append(Finding(rule, "holds", told))

    def genuine(self, reason: str) -> Record:
        """Record that everything held."""
        self.conclusion = reason
        return self

    def failed(self, error: AttestationError) -> Record:
        """Record what stopped the examination: against the evidence, or leaving it open."""
        self.stopped = error
        against = isinstance(error, _AGAINST)
        self.steps.append(Finding(error.code, "fails" if against else "not checked", error.summary))
        return self

    def followed(self, tail: bytes) -> None:
        """Record bytes behind the evidence: whoever wrote the file put them there, and nothing
        signs them."""
        if tail:
            self.warnings.append(f"TAIL: {len(tail)} bytes follow the evidence. Nothing signs them, and they are not "
                                 "judged.")

    def log(self, log: event_log.Explanation, events: int, register: str = "PCR") -> None:
        """Record which registers an event log explains, and where log and quote part."""
        for bank, registers in log.explained.items():
            if registers:
                self.holds("event-log", f"the event log ({events} events) gives the quoted values of {register} "
                           f"{event_log.listed(registers)} ({bank})")
        for bank, numbers in log.untouched.items():
            if numbers:
                self.holds("event-log", "at the reset value, and without an event in the log: "
                           f"{register} {event_log.listed(numbers)} ({bank})")
        self.warnings += [f"EVENT LOG: {sentence}." for sentence in event_log.told(log, register)]

    @property
    def verdict(self) -> Authenticity:
        """Whether the vendor's hardware said it, as far as the record goes."""
        if self.stopped is not None:
            return "not genuine" if isinstance(self.stopped, _AGAINST) else "cannot tell"
        return "genuine" if self.conclusion else "cannot tell"

    @property
    def proved(self) -> list[str]:
        """The checks that held, in words."""
        return [step.detail for step in self.steps if step.outcome == "holds"]

    @property
    def code(self) -> str:
        """The code of what stopped the examination, or nothing."""
        return "" if self.stopped is None else self.stopped.code

    @property
    def reason(self) -> str:
        """Why the verdict is what it is."""
        return self.conclusion if self.stopped is None else self.stopped.summary

    @property
    def hint(self) -> str | None:
        """The advice on it."""
        return None if self.stopped is None else self.stopped.hint

    @property
    def exit_code(self) -> int:
        """0 genuine, 1 not genuine, 2 cannot tell."""
        return EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The whole as plain values."""
        return {"kind": self.kind, "verdict": self.verdict, "code": self.code or None, "reason": self.reason,
                "hint": self.hint, "proved": self.proved, "warnings": self.warnings,
                "claims": {section: dict(claims) for section, claims in self.claims.items()}}

    def __str__(self) -> str:
        lines = [self.kind]
        authentic = "" if self.verdict == "genuine" else " (not proved)"
        for section, claims in self.claims.items():
            lines += ["", f"{section}{authentic}"]
            width = max((len(name) for name, _ in claims), default=0)
            lines += [f"  {name:<{width}}  {value if isinstance(value, str) else json.dumps(value)}"
                      for name, value in claims]
        lines += ["", *(f"holds: {check}" for check in self.proved),
                  *(f"WARNING: {warning}" for warning in self.warnings)]
        said = f"verdict: {self.verdict.upper()}" + (f" [{self.code}]" if self.code else "")
        lines += [said, f"  {self.reason}", *([f"  hint: {self.hint}"] if self.hint else [])]
        return "\n".join(plain(line) for line in lines)  # names and the like are whoever's wrote the evidence
