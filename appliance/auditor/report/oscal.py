"""A judgement as OSCAL assessment results (NIST OSCAL 1.2.1, JSON): for tools of governance.

A claim is an observation, and a control a finding. OSCAL knows "satisfied" and "not-satisfied"
only: what is covered in part is not satisfied, and says so in its remarks. The same pack and the
same judge give the same bytes.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from appliance import __version__
from appliance.attestation.findings import Finding
from appliance.auditor.claims.controls import Framework, Judged
from appliance.auditor.claims.table import CLAIMS
from appliance.auditor.report.engagement import Engagement
from appliance.codec.printable import plain

VERSION = "1.2.1"
_NS = "https://appliance.invalid/ns/oscal"  # a name, and no place
_NIST = "NIST SP 800-53"
_ENHANCED, _LETTERED = re.compile(r"\(([0-9]{1,3})\)"), re.compile(r" ([a-z])$")
_OTHERS = re.compile(r"[^A-Za-z0-9._]")
Object = dict[str, Any]


def results(pack_sha256: str, at: datetime, findings: Mapping[str, Finding],
            frameworks: Iterable[tuple[Framework, Sequence[Judged]]], about: Engagement) -> bytes:
    """Return the document on a pack of this digest, judged as of `at`."""
    maker = _Results(pack_sha256, f"{at:%Y-%m-%dT%H:%M:%SZ}")
    plan = {"uuid": maker.id("plan"), "title": "No assessment plan",
            "description": "The pack was judged by the claims of the appliance, without a plan in OSCAL."}
    pack = {"uuid": maker.id("pack"), "title": "The audit pack",
            "document-ids": [{"identifier": f"sha256:{pack_sha256}"}]}
    metadata: Object = {"title": "Judgement of an audit pack", "last-modified": maker.at, "version": __version__,
                        "oscal-version": VERSION}
    if about.entity is not None:
        metadata["parties"] = [{"uuid": maker.id("entity"), "type": "organization", "name": plain(about.entity, 200)}]
    document = {"assessment-results": {
        "uuid": maker.id("document"), "metadata": metadata, "import-ap": {"href": f"#{plan['uuid']}"},
        "results": [maker.result(*each, findings, about) for each in frameworks],
        "back-matter": {"resources": [plan, pack]}}}
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


class _Results:
    """Parts of the document on one pack. Their ids are made of its digest and their names."""

    def __init__(self, pack_sha256: str, at: str) -> None:
        self._pack, self.at = pack_sha256, at

    def id(self, *names: str) -> str:
        """Return an id (RFC 9562, version 5)."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join((_NS, self._pack, self.at, *names))))

    def result(self, framework: Framework, judged: Sequence[Judged], findings: Mapping[str, Finding], about: Engagement
               ) -> Object:
        """Return a framework's result: observations that its controls rest on, and a finding of
        each."""
        name = framework.framework
        used = dict.fromkeys(claim for each in judged for claim in each.control.claims)
        period = about.period
        controls = dict.fromkeys(_target(name, each.control.id)[0] for each in judged)
        return {
            "uuid": self.id(name), "title": plain(name, 500), "description": plain(framework.note or framework.source),
            **({"start": self.at} if period is None else
               {"start": f"{period.begin:%Y-%m-%dT%H:%M:%SZ}", "end": f"{period.end:%Y-%m-%dT%H:%M:%SZ}"}),
            "reviewed-controls": {"control-selections": [
                {"include-controls": [{"control-id": each} for each in controls]}]},
            **({"observations": [self._observation(name, findings[each]) for each in used]} if used else {}),
            "findings": [self._finding(name, each) for each in judged]}

    def _observation(self, name: str, found: Finding) -> Object:
        detail = {"relevant-evidence": [{"description": plain(found.detail)}]} if found.detail.strip() else {}
        return {"uuid": self.id(name, found.rule), "title": found.rule, "description": CLAIMS[found.rule].says,
                "props": [_property("outcome", found.outcome)], "methods": ["EXAMINE"], "collected": self.at, **detail}

    def _finding(self, name: str, judged: Judged) -> Object:
        control = judged.control
        satisfied = judged.status == "covered"
        said = " ".join(filter(None, [control.shows if judged.status.startswith("covered") else None, (
            f"Not shown here: {control.remains}" if control.remains else None)]))
        related = [{"observation-uuid": self.id(name, each)} for each in control.claims]
        return {
            "uuid": self.id(name, "control", control.id), "title": plain(f"{control.id} {control.title}", 500),
            "description": plain(said or judged.status), "props": [_property("status", judged.status)],
            "target": {"type": "statement-id", "target-id": _target(name, control.id)[1], "status": {
                "state": "satisfied" if satisfied else "not-satisfied",
                "reason": "pass" if satisfied else "fail" if judged.status == "failed" else "other",
                "remarks": judged.status}},
            **({"related-observations": related} if related else {})}


def _property(name: str, value: str) -> Object:
    return {"name": name, "ns": _NS, "value": value.replace(" ", "-")}


def _target(framework: str, name: str) -> tuple[str, str]:
    """Return the tokens of a control and of its statement. Those of NIST are its own
    catalogue's."""
    if framework.startswith(_NIST):
        lettered = _LETTERED.search(name)
        control = _ENHANCED.sub(r".\1", _LETTERED.sub("", name)).lower()
        return control, f"{control}_smt" + (f".{lettered[1]}" if lettered else "")
    token = "-".join(["clause", *filter(None, _OTHERS.sub("-", name).split("-"))])
    return token, token
