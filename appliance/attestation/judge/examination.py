"""The outcome of looking at one piece of evidence: a verdict on whether it is genuine, and all that it says.

Genuine is not acceptable: it means that the vendor's hardware said it. What it says must still be what was wanted,
which a policy decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.attestation.findings import plain
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError

Authenticity = Literal["genuine", "not genuine", "cannot tell"]
EXIT_CODES: dict[Authenticity, int] = {"genuine": 0, "not genuine": 1, "cannot tell": 2}
_AGAINST = (ForgedEvidenceError, MalformedEvidenceError)


@dataclass
class Examination:
    """`proved` are the checks that held, `claims` what the evidence says in its vendor's terms: JSON, by section."""

    kind: str
    verdict: Authenticity = "cannot tell"
    code: str = ""
    reason: str = ""
    hint: str | None = None
    proved: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    claims: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)

    def genuine(self, reason: str) -> Examination:
        """Record that everything held."""
        self.verdict, self.reason = "genuine", reason
        return self

    def followed(self, tail: bytes) -> None:
        """Record bytes behind the evidence: whoever wrote the file put them there, and nothing signs them."""
        if tail:
            self.warnings.append(f"TAIL: {len(tail)} bytes follow the evidence. Nothing signs them, and they are not "
                                 "judged.")

    def failed(self, error: AttestationError) -> Examination:
        """Record what stopped the examination: against the evidence, or leaving it open."""
        self.verdict = "not genuine" if isinstance(error, _AGAINST) else "cannot tell"
        self.code, self.reason, self.hint = error.code, error.summary, error.hint
        return self

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
