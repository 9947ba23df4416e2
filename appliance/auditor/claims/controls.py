"""Controls of frameworks, as data: what a clause asks for, and the claims that bear on it.

One TOML file a framework, in `appliance/auditor/controls/` and wherever a team keeps its own.
docs/reference/controls.md specifies it. A control without a claim is "not covered"; one claim that
fails makes it "failed".
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from appliance import packaged
from appliance.attestation.binding import describe
from appliance.audit.retained import PARTS
from appliance.auditor import held
from appliance.auditor.claims.claim import Claimed
from appliance.auditor.claims.retention import least_days, least_words
from appliance.auditor.claims.table import CLAIMS, FORMER
from appliance.codec.printable import plain, quantity
from appliance.errors import AuditError
from appliance.policy.bind import path_text
from appliance.policy.explaining.checking import CheckResult
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Diagnostic

FORMAT = "appliance/controls/v1"
MAX_BYTES, MAX_CONTROLS = 1 << 20, 512
_FOLDER = "auditor/controls"
_KEPT = "policy-kept"  # the claim whose days a control may demand
_RETENTION = ("privacy", "retention", "audit")
Status = Literal["covered", "covered in part", "not covered", "failed"]
Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z][a-z0-9-]{0,63}$"),
                 AfterValidator(lambda name: FORMER.get(name, name))]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Control(_Part):
    """One control. `clause`: its text, quoted; `asks`: the same in other words, where it may not be
    quoted. `part`: the claims bear out a part of the clause; `remains` says what else it asks for,
    and of whom. `kept_days`: so long it wants records of requests kept at least."""

    id: Text
    title: Text
    clause: Text | None = None
    asks: Text | None = None
    claims: tuple[Word, ...] = Field(default=(), max_length=32)
    shows: Text | None = None
    remains: Text | None = None
    part: Annotated[bool, Field(strict=True)] = False
    kept_days: Annotated[int | None, Field(strict=True, ge=1, le=36_600)] = None

    @model_validator(mode="after")
    def _exact(self) -> Control:
        if unknown := [each for each in self.claims if each not in CLAIMS]:
            raise ValueError(f"there is no claim {unknown[0]}")
        if (self.part or not self.claims) and self.remains is None:
            raise ValueError("where claims bear out a part, or nothing, `remains` says what is left")
        if bool(self.claims) != (self.shows is not None):
            raise ValueError("`shows` says what the claims show together")
        if self.kept_days is not None and _KEPT not in self.claims:
            raise ValueError(f"`kept_days` needs the claim {_KEPT}")
        return self

    @property
    def rests_on(self) -> tuple[str, ...]:
        """Its claims, and those without which they tell nothing of the machine."""
        return tuple(dict.fromkeys(name for each in self.claims for name in (*CLAIMS[each].rests_on, each)))

    def status(self, findings: Mapping[str, Claimed]) -> Status:
        """How far the pack bears out what the clause asks for. A claim with exceptions bears out a
        part."""
        found = [findings[each] for each in self.rests_on]
        outcomes = [each.outcome for each in found]
        if "fails" in outcomes:
            return "failed"
        if not outcomes or "not checked" in outcomes:
            return "not covered"
        return "covered in part" if self.part or any(each.but for each in found) else "covered"

    def sentences(self, findings: Mapping[str, Claimed]) -> tuple[str, ...]:
        """Return the sentences of its claims that hold, each with what was judged."""
        found = [(CLAIMS[each].says, findings[each]) for each in self.rests_on]
        return tuple(says.removesuffix(".") + (f" ({each.detail})." if each.detail else ".")
                     for says, each in found if each.outcome == "holds")


class Framework(_Part):
    """One framework's file."""

    format: Literal["appliance/controls/v1"]
    framework: Text
    source: Text
    note: Text | None = None
    controls: tuple[Control, ...] = Field(alias="control", min_length=1, max_length=MAX_CONTROLS)

    @model_validator(mode="after")
    def _once(self) -> Framework:
        names = [each.id for each in self.controls]
        if len(names) != len(set(names)):
            raise ValueError("a control stands twice")
        return self


@dataclass(frozen=True)
class Judged:
    """A control, and how it stands."""

    control: Control
    status: Status


def parse(data: bytes, name: str) -> Framework:
    """Return a framework from a file's bytes. Raises AuditError, which says what is wrong in it."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return Framework.model_validate(tomllib.loads(data.decode("utf-8")))
    except ValidationError as error:
        said = describe(error)
    except (ValueError, RecursionError) as error:
        said = plain(str(error), 200)
    raise AuditError(f"{name}: not a mapping of controls: {said}", code="controls-malformed",
                     hint="docs/reference/controls.md has the form, and appliance/auditor/controls has examples")


def own() -> list[Framework]:
    """Return the frameworks that come with the appliance."""
    folder = packaged.ROOT / _FOLDER
    return [parse(packaged.content(f"{_FOLDER}/{path.name}", "a mapping of controls"), path.name)
            for path in sorted(folder.glob("*.toml"), key=_name)]


def _name(path: Path) -> str:
    return path.name


def named(text: str) -> Framework:
    """Return a framework by the name of one of our files, or from a file. Raises AuditError."""
    ours = sorted(path.stem for path in (packaged.ROOT / _FOLDER).glob("*.toml"))
    if text in ours:
        return parse(packaged.content(f"{_FOLDER}/{text}.toml", "a mapping of controls"), text)
    try:
        return parse(held.content(Path(text), MAX_BYTES), text)
    except OSError as error:
        raise AuditError(f"mapping of controls {plain(text, 200)}: {error.strerror}", code="controls-unknown",
                         hint=f"name a file, or one of ours: {', '.join(ours)}") from None


def judge(framework: Framework, findings: Mapping[str, Claimed], kept_days: float | None = None) -> list[Judged]:
    """Return each control of a framework. `kept_days`: for how long the policy keeps records at
    least."""
    return [Judged(each, _standing(each, each.status(findings), kept_days)) for each in framework.controls]


def _standing(control: Control, status: Status, kept_days: float | None) -> Status:
    """How a control stands by its claims and its days: a promise counts once evidence shows it."""
    return "failed" if status.startswith("covered") and _falls_short(control, kept_days) else status


def _falls_short(control: Control, kept_days: float | None) -> bool:
    return control.kept_days is not None and kept_days is not None and kept_days < control.kept_days


def warnings(checked: CheckResult, frameworks: Iterable[Framework]) -> tuple[Diagnostic, ...]:
    """Return a warning for each control that wants records kept for longer than a valid policy
    does."""
    if checked.policy is None or checked.version is None:
        return ()
    report, days = FullReport(checked.positions.text), least_days(checked.policy)
    for framework in frameworks:
        for control in framework.controls:
            if days is None or not _falls_short(control, days):
                continue
            wanted = control.kept_days or 0
            report.add("warning", "controls", f"records of requests can be read for {least_words(days)}, and "
                       f"{framework.framework}, {control.id}, wants {quantity(wanted, 'day')}",
                       checked.positions.span(_RETENTION),
                       fix=f'write audit = "{math.ceil(wanted * PARTS / (PARTS - 1))}d", or leave it out: then none is '
                       "destroyed", path=path_text(_RETENTION, checked.version))
    return tuple(report.sorted())


def counts(judged: Iterable[Judged]) -> dict[Status, int]:
    """How many controls stand how."""
    found: dict[Status, int] = {"covered": 0, "covered in part": 0, "not covered": 0, "failed": 0}
    for each in judged:
        found[each.status] += 1
    return found
