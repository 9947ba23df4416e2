"""A policy file to all of its findings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from appliance.mistakes import files
from appliance.policy import bind, rules
from appliance.policy.enforcement import UNSEALED, unbootable
from appliance.policy.explaining import advice
from appliance.policy.explaining.binding import ExplainingBinder
from appliance.policy.explaining.fixes import named
from appliance.policy.explaining.parser import parse
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import Diagnostic, InvalidPolicyError, SourceText, Span
from appliance.policy.hcl.tree import Body
from appliance.policy.loading import Loaded, Positions, loaded, read
from appliance.policy.schema import Policy
from appliance.policy.schema.base import fields
from appliance.policy.schema.versions import LATEST

NEVER_BOOTS = frozenset({"unenforced", "unbootable"})  # codes of notes: no boot of this version gets past the field


@dataclass(frozen=True)
class CheckResult:
    """The outcome of checking a text: findings, and the policy if none of them is an error."""

    diagnostics: tuple[Diagnostic, ...]
    policy: Policy | None
    positions: Positions
    source_sha384: bytes = field(repr=False)  # of the file's bytes as they are
    version: int | None = None  # the schema version that it declares; None where that is none or unknown

    @property
    def valid(self) -> bool:
        """Whether there is no error (there may be warnings and notes)."""
        return self.policy is not None

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The fields of a valid policy for which this version boots it nowhere."""
        return tuple(found.path for found in self.diagnostics if found.code in NEVER_BOOTS)


def check(text: str, filename: str = "policy.hcl") -> CheckResult:
    """Check a policy's text; never raises on account of it."""
    return check_bytes(text.encode("utf-8", errors="surrogatepass"), filename)


def check_bytes(data: bytes, filename: str = "policy.hcl", nbytes: int | None = None) -> CheckResult:
    """Check a policy file's bytes; never raises on account of them. `nbytes` is the file's length
    if they are only its beginning."""
    digest = hashlib.sha384(data).digest()
    text, problem, where = parser.decode(data, nbytes)
    report = FullReport(SourceText(text, filename))
    if problem is not None:
        fix = "make it shorter" if len(data) > parser.MAX_BYTES else "save the file as plain UTF-8"
        report.error("encoding", problem, where, fix=fix,
                     detail=f"UTF-8, at most {parser.MAX_BYTES} bytes")
        if not text:
            return _foreign(data, filename) or CheckResult(report.sorted(), None, Positions(report.text, {}), digest)
    body = _parsed(report)
    policy, spans = bind.bind(body, report, ExplainingBinder)
    declared = bind.declared_version(body)
    version = declared or LATEST
    _object(policy, report, Positions(report.text, spans), version)
    positions = Positions(report.text, spans)
    if report.failed:
        return _foreign(data, filename) or CheckResult(report.sorted(), None, positions, digest, declared)
    _say_what_never_boots(policy, report, positions, version)
    return CheckResult(report.sorted(), policy, positions, digest, version)


def _foreign(data: bytes, filename: str) -> CheckResult | None:
    """Return the result for bytes that are not a policy and that look like a file of another kind.
    Its lines are not shown: it may be a key."""
    if (kind := files.foreign(data)) is None:
        return None
    report = FullReport(SourceText("", filename))
    report.error("kind", f"this is {kind.what}, not a policy", Span(0, 0), fix=kind.use)
    return CheckResult(report.sorted(), None, Positions(report.text, {}), hashlib.sha384(data).digest())


def _parsed(report: FullReport) -> Body:
    """Return a text's body. Where this reading finds no mistake, the strict one decides."""
    body = parse(report, [shape.name for shape in fields(Policy)])
    if not report.failed:
        try:
            return parser.parse(report.text)
        except InvalidPolicyError as error:
            report.found += error.diagnostics
    return body


def _object(policy: Policy, report: FullReport, positions: Positions, version: int) -> None:
    """Report what rules and advice object to."""
    found = rules.breaches(policy, partial=report.failed, policy_rules=advice.policy_rules(),
                             block_rules=advice.block_rules())
    for path, each in found:
        report.add(each.severity_in(version), "rule", each.summary, positions.span(path), detail=each.detail,
                   fix=named(each), path=bind.path_text(path, version))


def _say_what_never_boots(policy: Policy, report: FullReport, positions: Positions, version: int) -> None:
    for path, reason in unbootable(policy):
        fix = 'seal the model, or write streaming_decrypt = "auto"' if reason == UNSEALED else "leave it out"
        report.add("note", "unbootable" if reason == UNSEALED else "unenforced",
                   f"{bind.path_text(path, version)}: {reason}", positions.span(path),
                   path=bind.path_text(path, version), fix=f"the boot refuses it; {fix} to boot this version")


def check_file(path: str | Path) -> CheckResult:
    """Check a policy file; raise `PolicyError` only where it cannot be read."""
    data = read(Path(path))
    return check_bytes(data, str(path), Path(path).stat().st_size if len(data) > parser.MAX_BYTES else None)


def load(path: str | Path) -> Loaded:
    """Read and check a policy file; raise `PolicyError`, with all `.diagnostics` where the text is
    at fault."""
    checked = check_file(path)
    if checked.policy is None:
        raise InvalidPolicyError(checked.diagnostics)
    return loaded(checked.policy, checked.positions, checked.source_sha384, Path(path), checked.diagnostics)
