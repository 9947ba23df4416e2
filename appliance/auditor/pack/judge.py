"""A pack written with its report, and a pack judged again: every claim, every control, no network.

The packer's words are kept apart. The report in the pack is made anew from its members, by the
packer's own time and keys, and compared.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from appliance import __version__
from appliance.attestation.findings import Finding
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.auditor.archive import manifest, members
from appliance.auditor.archive.manifest import Judged, Manifest
from appliance.auditor.claims import controls, retention, table
from appliance.auditor.claims.case import Case, Given, LackingError
from appliance.auditor.claims.claim import Claimed
from appliance.auditor.claims.controls import Framework
from appliance.auditor.report import oscal, page, span
from appliance.auditor.report.engagement import Engagement
from appliance.errors import ApplianceError

REPORT = members.BY_NAME["report"].place
Frameworks = list[tuple[Framework, list[controls.Judged]]]


@dataclass(frozen=True)
class Outcome:
    """A pack that was judged. `report`: whether the report in it is what its members give."""

    sha256: str
    manifest: Manifest
    case: Case
    findings: Mapping[str, Claimed]
    report: Finding
    frameworks: Frameworks

    @property
    def failed(self) -> list[Finding]:
        """The claims that evidence speaks against, and a report that is another one."""
        return [each for each in (*self.findings.values(), self.report) if each.outcome == "fails"]

    @property
    def warnings(self) -> list[str]:
        """Words on a time of judgement that the pack's evidence does not bear."""
        return span.warnings(self.case)

    def page(self, about: Engagement | None = None) -> bytes:
        """Return the judge's own report, on what its opinion is about."""
        return page.page(self.case, self.findings, self.frameworks, self.sha256, about)

    def oscal(self, about: Engagement | None = None) -> bytes:
        """Return the same as OSCAL assessment results."""
        return oscal.results(self.sha256, self.case.given.at, self.findings, self.frameworks, about or Engagement())

    def as_json(self) -> dict[str, Any]:
        """Return the whole as plain values."""
        return {
            "pack_sha256": self.sha256, "at": f"{self.case.given.at:%Y-%m-%dT%H:%M:%SZ}",
            "packed": self.manifest.judged.model_dump(mode="json"), "version": self.manifest.version,
            "missing": list(self.manifest.missing), "warnings": self.warnings, "report": self.report.outcome,
            "members": {each.name: each.sha256 for each in self.manifest.members},
            "claims": {name: {"outcome": each.outcome, "says": table.CLAIMS[name].says, "detail": each.detail,
                              "but": each.but or None}
                       for name, each in self.findings.items()},
            "controls": {framework.framework: {each.control.id: each.status for each in judged}
                         for framework, judged in self.frameworks}}


def written(found: Mapping[str, bytes], given: Given) -> tuple[bytes, Mapping[str, Claimed]]:
    """Return the pack of these members, with a report, and what was found while it was written."""
    judged = Judged(
        at=f"{given.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", measurements_unsigned=given.unsigned,
        builder_key=None if given.builder_key is None else given.builder_key.hex(),
        need_revocation=given.need_revocation, nonces=tuple(each.hex() for each in given.nonces))
    report, findings = _made(found, judged, given.roots)
    return manifest.pack({**found, REPORT: report}, judged, __version__), findings


def _made(found: Mapping[str, bytes], said: Judged, roots: Roots) -> tuple[bytes, Mapping[str, Claimed]]:
    """Return the report of these members by only the packer's words, and its findings."""
    case = Case(dict(found), Given(
        said.time, None if said.builder_key is None else bytes.fromhex(said.builder_key), said.measurements_unsigned,
        nonces=tuple(map(bytes.fromhex, said.nonces)), need_revocation=said.need_revocation, roots=roots))
    findings = table.judge(case)
    return page.page(case, findings, _frameworks(case, findings)), findings


def judge(data: bytes, given: Given) -> Outcome:
    """Judge a pack. Raises AuditError, which names a member that is not what was packed."""
    packed, found = manifest.unpack(data)
    case = Case(found, given)
    findings = table.judge(case)
    return Outcome(hashlib.sha256(data).hexdigest(), packed, case, findings, _report(packed, found, given.roots),
                   _frameworks(case, findings))


def _frameworks(case: Case, findings: Mapping[str, Claimed]) -> Frameworks:
    """Our mappings, and those in the pack."""
    kept_days: float | None = None
    listed = [*controls.own(), *(controls.parse(content, name) for name, content in sorted(
        case.many("controls").items()))]
    with contextlib.suppress(LackingError, ApplianceError):
        kept_days = retention.least_days(case.policy.policy)
    return [(each, controls.judge(each, findings, kept_days)) for each in listed]


def _report(packed: Manifest, found: Mapping[str, bytes], roots: Roots = VENDORS) -> Finding:
    """Compare the report in the pack with the report that its members and the packer's words
    give."""
    if REPORT not in found:
        return Finding("report", "not checked", "the pack has no report")
    if packed.version != __version__:
        return Finding("report", "not checked", f"it was made by version {packed.version}, and this is {__version__}")
    try:
        made, _ = _made({name: content for name, content in found.items() if name != REPORT}, packed.judged, roots)
        same = made == found[REPORT]
    except ApplianceError as error:
        return Finding("report", "fails", error.summary)
    return Finding("report", "holds" if same else "fails", "" if same else "it is not what the pack's members give")
