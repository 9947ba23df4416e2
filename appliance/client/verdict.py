"""A verdict on an appliance: one of nine words, what was proved and what was not, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from appliance.attestation.binding import Statement
from appliance.attestation.findings import Finding
from appliance.client import rules
from appliance.codec.printable import plain
from appliance.errors import (
    ApplianceError,
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    RejectedEvidenceError,
    UncheckedEvidenceError,
)

Status = Literal["verified", "evidence invalid", "could not check", "policy not met", "measured boot, host trusted",
                 "firmware proved, host trusted", "simulated", "verified, to a key", "measured boot, AWS trusted"]
VERIFIED: Status = "verified"
INVALID: Status = "evidence invalid"
UNCHECKED: Status = "could not check"
NOT_MET: Status = "policy not met"
HOST_TRUSTED: Status = "measured boot, host trusted"
FIRMWARE_PROVED: Status = "firmware proved, host trusted"
SIMULATED: Status = "simulated"
KEY_BOUND: Status = "verified, to a key"
AWS_TRUSTED: Status = "measured boot, AWS trusted"
EXIT_CODES: Mapping[Status, int] = MappingProxyType({
    VERIFIED: 0, INVALID: 1, UNCHECKED: 2, NOT_MET: 3, HOST_TRUSTED: 4, FIRMWARE_PROVED: 4, SIMULATED: 5, KEY_BOUND: 6,
    AWS_TRUSTED: 7})
_WIDTH = 160  # characters of a line that a person reads
_PIECES = re.compile(r", (?=expected )| (?=or [0-9a-f]{32})|(?<=[0-9a-f]{32}); ")  # between digests that are compared
_AGAINST: Mapping[Status, type[AttestationError]] = MappingProxyType({
    INVALID: ForgedEvidenceError, UNCHECKED: UncheckedEvidenceError})
_LESSER: Mapping[Status, str] = MappingProxyType({
    HOST_TRUSTED: "host-trusted", FIRMWARE_PROVED: "firmware-alone", SIMULATED: "simulated", KEY_BOUND: "key-bound",
    AWS_TRUSTED: "aws-trusted"})
_UNTIL_VERIFIED: Mapping[Status, str] = MappingProxyType({
    SIMULATED: "where that will do, for tests and development: --accept simulated",
    HOST_TRUSTED: "where that will do, for tests and development: --accept host-trusted",
    FIRMWARE_PROVED: "no --accept takes this: any tenant of the cloud gets it, with software of their own",
    AWS_TRUSTED: "where AWS is trusted: --accept aws-trusted",
    KEY_BOUND: "where evidence of a key will do: --key-bound"})
_SAYS: Mapping[Status, str] = MappingProxyType({
    VERIFIED: "an appliance under this policy, in hardware that its operator cannot read",
    HOST_TRUSTED: "what booted is known if the host is honest; NOTHING IS PROTECTED FROM THE HOST",
    FIRMWARE_PROVED: "chip and firmware proved, boot by the host's vTPM, of which nothing is shown. The launch digest "
    "says which firmware started, and not what it booted: ANYBODY'S SOFTWARE MAY ANSWER. A firmware "
    "that measures kernel hashes would change it (github.com/aws/uefi/issues/20)",
    AWS_TRUSTED: "an appliance under this policy, by the word of AWS's hypervisor; AWS CAN READ WHAT IT HOLDS, and "
    "nobody else who runs the machine",
    KEY_BOUND: "an appliance under this policy, in hardware that its operator cannot read; whoever once got its TLS "
    "key can relay this, and answer in its place",
    SIMULATED: "SIMULATED: PROVES NOTHING. No hardware is behind it, and anyone can answer like this"})


@dataclass(frozen=True, repr=False)
class Verdict:
    """`code` names the first rule that failed or what stopped the check, in kebab case; empty for a
    good verdict.

    `nonce` is what the evidence answers, `spki_sha256` the key of the connection that was judged,
    `raw` the evidence as it came. `statement` is None unless the evidence is authentic.
    """

    status: Status
    target: str
    at: datetime
    policy_sha384: bytes
    findings: tuple[Finding, ...] = ()
    code: str = ""
    reason: str = ""
    hint: str | None = None
    platform: str | None = None
    statement: Statement | None = None
    nonce: bytes | None = None
    spki_sha256: bytes | None = None
    raw: bytes | None = field(default=None, repr=False)
    test_roots: bool = False

    @property
    def verified(self) -> bool:
        """Whether this is the one good verdict: never so for simulated evidence, or a TPM that the
        host may run."""
        return self.status == VERIFIED

    @property
    def exit_code(self) -> int:
        """0 verified, 1 evidence invalid, 2 could not check, 3 policy not met, 4 host trusted (also
        where the firmware alone is proved), 5 simulated, 6 verified, to a key, 7 AWS trusted."""
        return EXIT_CODES[self.status]

    def require(self, *accept: Status) -> None:
        """Raise the error of a verdict that is neither "verified" nor in `accept`.

        ForgedEvidenceError for invalid evidence, UncheckedEvidenceError, RejectedEvidenceError for
        all others.
        """
        if not self.verified and self.status not in accept:
            kind = _AGAINST.get(self.status, RejectedEvidenceError)
            raise kind(f"{self.target}: {self.status}: {self.reason}", code=self.code or _LESSER.get(self.status),
                       hint=self.hint or _UNTIL_VERIFIED.get(self.status))

    def as_json(self) -> dict[str, Any]:
        """The whole as plain values."""
        return {
            "verdict": self.status, "exit_code": self.exit_code, "code": self.code or None, "reason": self.reason,
            "hint": self.hint, "target": self.target, "at": f"{self.at:%Y-%m-%dT%H:%M:%SZ}",
            "platform": self.platform, "policy_sha384": self.policy_sha384.hex(), "nonce": _hex(self.nonce),
            "tls_spki_sha256": _hex(self.spki_sha256), "test_roots": self.test_roots,
            "findings": [{"rule": each.rule, "outcome": each.outcome, "meaning": rules.meaning(each.rule),
                          "field": rules.field(each.rule) or None, "detail": each.detail} for each in self.findings],
            "statement": None if self.statement is None else self.statement.model_dump(mode="json")}

    def __repr__(self) -> str:
        return f"Verdict({self.status!r}, {self.code!r}, {self.reason!r}, {self.target!r})"

    def __str__(self) -> str:
        lines = [f"{self.target}: {self.status.upper()}" + (f" [{self.code}]" if self.code else ""),
                 f"  {self.reason}", *([f"  hint: {self.hint}"] if self.hint else []),
                 f"  judged as of {self.at:%Y-%m-%dT%H:%M:%SZ}, policy {self.policy_sha384.hex()}"]
        if self.test_roots:
            lines.append("  TEST ROOTS: not the vendors' alone were believed")
        lines += [f"  WARNING: {each.detail}" for each in self.findings
                  if self.verified and (each.rule, each.outcome) == ("session", "not checked")]
        for title, outcome in (("proved", "holds"), ("FAILED", "fails"), ("not proved", "not checked")):
            shown = [each for each in self.findings if each.outcome == outcome
                     and not (outcome == "not checked" and rules.is_quiet(each.rule))]
            if shown:
                lines += ["", f"{title}:", *(line for each in shown for line in _lines(each))]
        return "\n".join(plain(line) for line in lines)  # certificates' names and the like may be an attacker's


def unmade(error: ApplianceError, target: str | None) -> dict[str, Any]:
    """The stand-in for a verdict that could not be made, as plain values with the same keys: "could
    not check"."""
    empty = dict.fromkeys(("at", "platform", "policy_sha384", "nonce", "tls_spki_sha256", "statement"))
    return {"verdict": UNCHECKED, "exit_code": EXIT_CODES[UNCHECKED], "code": error.code, "reason": error.summary,
            "hint": error.hint, "target": target, **empty, "test_roots": False, "findings": []}


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _lines(finding: Finding) -> list[str]:
    """A finding for people. One that fails has its field, and below it what was compared, if that
    is long."""
    head = f"  {finding.rule:<20}  {rules.meaning(finding.rule)}"
    if finding.outcome != "fails":
        return [f"{head} ({finding.detail})" if finding.detail else head]
    field = rules.field(finding.rule)
    told = "; ".join(filter(None, [field, finding.detail]))
    if len(head) + len(told) <= _WIDTH:
        return [f"{head} ({told})" if told else head]
    return [f"{head} ({field})" if field else head, *(f"      {piece}" for piece in _PIECES.split(finding.detail))]


def status_of(error: AttestationError) -> Status:
    """The verdict that an error stands for."""
    if isinstance(error, ForgedEvidenceError | MalformedEvidenceError):
        return INVALID
    return NOT_MET if isinstance(error, RejectedEvidenceError) else UNCHECKED


def good(status: Status) -> str:
    """A good verdict in one line."""
    return _SAYS[status]
