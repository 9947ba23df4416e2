"""A baseline's file to its rules, with all mistakes in it at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import PolicyError
from appliance.policy.baselines.form import BaselineFile, BaselineRule, Demand
from appliance.policy.baselines.places import shape_of
from appliance.policy.enforcement import places
from appliance.policy.explaining.binding import ExplainingBinder
from appliance.policy.explaining.fixes import better, closest
from appliance.policy.explaining.parser import parse as explained
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import Diagnostic, InvalidPolicyError, SourceText, Span, render
from appliance.policy.hcl.tree import Body
from appliance.policy.language.tables import from_code
from appliance.policy.loading import read
from appliance.policy.schema.base import FieldShape, fields
from appliance.policy.schema.frozen import LATEST, Entry
from appliance.policy.schema.kinds import Duration, Kind, Mismatch, Number, SetOf, Size, Whole

OF_VALUES = ("equals", "one_of", "none_of", "at_least", "at_most")
OF_LISTS = ("none_of", "only", "has", "count")
ASKED = (*dict.fromkeys((*OF_VALUES, *OF_LISTS)), "present")
ORDERED = (Whole, Number, Size, Duration)
MAX_DEPTH = 8  # baselines that include each other


class BaselineError(PolicyError):
    """A baseline that cannot be used; all findings are in `diagnostics`."""

    code = "baseline-invalid"

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"the baseline has mistakes\n{render(diagnostics)}",
                         hint="docs/reference/baselines.md has the form, and policies/baselines has examples")
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class Baseline:
    """A baseline with its own rules, without the rules of files that it includes."""

    path: Path
    name: str
    summary: str
    rules: tuple[BaselineRule, ...]


class _Binder(ExplainingBinder):
    @functools.cached_property
    def table(self) -> dict[str, Entry]:
        return dict(from_code(LATEST, BaselineFile))


def load(path: Path) -> list[Baseline]:
    """Return the baselines that a file includes, and last its own. Raises PolicyError where one
    cannot be read, and BaselineError for all mistakes in one."""
    found: dict[Path, Baseline] = {}
    _load(path, found, ())
    return list(found.values())


def _load(path: Path, found: dict[Path, Baseline], around: tuple[Path, ...]) -> None:
    if path.resolve() in found:
        return
    if path.resolve() in around or len(around) >= MAX_DEPTH:
        raise PolicyError(f"{path} is included by itself, or {MAX_DEPTH} deep", code="baseline-circle",
                          hint="leave it out of `includes`")
    file = _read(path)
    for name in file.baseline.includes:
        _load(path.parent / name, found, (*around, path.resolve()))
    found[path.resolve()] = Baseline(path, file.baseline.name, file.baseline.summary, file.rules)


def _read(path: Path) -> BaselineFile:
    data = read(path)
    text, problem, where = parser.decode(data)
    report = FullReport(SourceText(text, str(path)))
    if problem is not None:
        report.error("encoding", problem, where, fix="save the file as plain UTF-8")
        raise BaselineError(report.sorted())
    binder = _Binder(report, LATEST)
    file: BaselineFile = binder.block(BaselineFile, _parsed(report), (), "")
    if not report.failed:
        for span, refused, allowed in _mistakes(file, binder):
            report.error("value", refused.found, span, detail=allowed, fix=refused.fix or "")
    if report.failed:
        raise BaselineError(report.sorted())
    return file


def _parsed(report: FullReport) -> Body:
    """Return the text's body: of the strict reading, where the explaining one finds no mistake."""
    body = explained(report, [shape.name for shape in fields(BaselineFile)])
    if not report.failed:
        try:
            return parser.parse(report.text)
        except InvalidPolicyError as error:
            report.found += error.diagnostics
    return body


def _mistakes(file: BaselineFile, binder: _Binder) -> Iterator[tuple[Span, Mismatch, str]]:
    """Yield what is wrong in demands: where, what, and what is allowed."""
    for rule in file.rules:
        for place, demand in ((("rule", rule.id), rule), (("rule", rule.id, "when"), rule.when)):
            if demand is None:
                continue
            for name, refused, allowed in _of_demand(demand):
                where = binder.positions.get((*place, name), binder.positions.get(place, Span(0, 1)))
                plain = refused.found.startswith(("has ", "is "))  # what a kind says of a value, without its name
                yield where, Mismatch(f"{name} {refused.found}" if plain else refused.found, refused.fix), allowed


def _of_demand(demand: Demand) -> Iterator[tuple[str, Mismatch, str]]:
    shape = shape_of(demand.field)
    if shape is None:
        guess = closest(demand.field, places())
        yield "field", Mismatch(f"there is no field {demand.field}", f"did you mean {guess}?" if guess else None), (
            "a path as docs/reference/policy.md has it, without labels")
        return
    asked = [name for name in ASKED if getattr(demand, name) is not None]
    if not asked:
        yield "field", Mismatch("nothing is asked of this field", 'write equals = ..., or present = true'), (
            ", ".join(ASKED))
    for name in asked:
        try:
            parsed(demand, name, shape)
        except Mismatch as refused:
            yield name, refused, shape.kind.allowed() if shape.kind else "present, and count of labelled blocks"


def parsed(demand: Demand, name: str, shape: FieldShape) -> Any:
    """Return what a demand asks for, as the program has such values. Raises Mismatch for what the
    field never is."""
    value = getattr(demand, name)
    if name == "present":
        return value
    if name not in _askable(shape):
        raise Mismatch(f"{name} cannot be asked of {demand.field}", f"write {' or '.join(_askable(shape))}")
    if name == "count" or shape.kind is None:
        return value
    kind = shape.kind.item if isinstance(shape.kind, SetOf) else shape.kind
    return tuple(_of_kind(kind, each) for each in value) if isinstance(value, tuple) else _of_kind(kind, value)


def _askable(shape: FieldShape) -> tuple[str, ...]:
    """Return the demands that can be made on a field."""
    if shape.kind is None:
        return ("present", "count") if shape.labelled else ("present",)
    if isinstance(shape.kind, SetOf):
        return ("present", *OF_LISTS)
    ordered = isinstance(shape.kind, ORDERED)
    return ("present", *(name for name in OF_VALUES if ordered or not name.startswith("at_")))


def _of_kind(kind: Kind, value: Any) -> Any:
    try:
        return kind.parse(value)
    except Mismatch as refused:
        raise better(refused, kind, value) from None
