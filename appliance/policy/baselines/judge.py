"""A policy held against a baseline: each rule passes, fails or does not apply, by one line of the
policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from appliance.codec.printable import quantity
from appliance.policy.baselines.form import BaselineRule, Demand
from appliance.policy.baselines.places import FieldPlace, places_of, shape_of
from appliance.policy.baselines.reading import ASKED, Baseline, parsed
from appliance.policy.bind import path_text
from appliance.policy.explaining.checking import CheckResult
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import literal
from appliance.policy.hcl.diagnostics import Diagnostic
from appliance.policy.schema import Policy
from appliance.policy.schema.base import FieldShape
from appliance.policy.schema.kinds import SetOf, shown

RuleOutcome = Literal["pass", "fail", "not applicable"]
_WIDEST = 80  # characters of a value that are shown


@dataclass(frozen=True)
class Ruling:
    """A rule, how it stands, and the place of the policy that decides it; None of a rule that does
    not apply."""

    baseline: str
    rule: BaselineRule
    outcome: RuleOutcome
    diagnostic: Diagnostic | None = None
    found: str = ""  # the field there, as the policy has it
    written: bool = False  # it stands in the file; else it is a default, or absent
    further: int = 0  # places that fail beside this

    @property
    def id(self) -> str:
        """The baseline's name and the rule's id."""
        return f"{self.baseline}/{self.rule.id}"

    @property
    def breaks(self) -> bool:
        """Whether the check fails because of it."""
        return self.outcome == "fail" and self.rule.severity == "error"

    def as_json(self) -> dict[str, Any]:
        """Return the ruling for JSON output."""
        at = self.diagnostic
        return {"id": self.id, "outcome": self.outcome, "severity": self.rule.severity, "field": self.rule.field,
                "path": at.path if at else None, "line": at.line if at else None, "column": at.column if at else None,
                "written": self.written, "found": self.found or None, "wanted": wanted(self.rule),
                "fix": (at.fix or None) if at else None, "further": self.further, "reason": self.rule.reason,
                "controls": list(self.rule.controls), "attack": self.rule.attack}


def judge(checked: CheckResult, baselines: Iterable[Baseline]) -> list[Ruling]:
    """Return how each rule stands for a valid policy; nothing for an invalid one."""
    if checked.policy is None:
        return []
    return [_ruling(checked, checked.policy, baseline.name, rule) for baseline in baselines for rule in baseline.rules]


def _ruling(checked: CheckResult, policy: Policy, name: str, rule: BaselineRule) -> Ruling:
    shape = _shape(rule)
    places = [place for place in places_of(policy, rule.field) if _applies(policy, rule, place)]
    if not places:
        return Ruling(name, rule, "not applicable")
    failing = [place for place in places if not holds(rule, shape, place.value)]
    place = (failing or places)[0]
    words = _found(shape, place)
    report = FullReport(checked.positions.text)
    path = path_text(place.path, checked.version or policy.appliance.schema_version)
    report.add(rule.severity, f"{name}/{rule.id}", f"{path} is {words}", checked.positions.span(place.path),
               detail=wanted(rule), fix=_fix(rule) if failing else "", path=path)
    written = any(each[:len(place.path)] == place.path for each in checked.positions.spans)
    return Ruling(name, rule, "fail" if failing else "pass", report.found[0], words, written,
                  max(0, len(failing) - 1))


def _shape(demand: Demand) -> FieldShape:
    shape = shape_of(demand.field)
    if shape is None:
        raise ValueError(f"{demand.field} was not checked")
    return shape


def _applies(policy: Policy, rule: BaselineRule, place: FieldPlace) -> bool:
    if rule.when is None:
        return True
    shape = _shape(rule.when)
    return any(holds(rule.when, shape, each.value) for each in places_of(policy, rule.when.field)
               if place.beside(each) or each.beside(place))


def holds(demand: Demand, shape: FieldShape, value: Any) -> bool:
    """Whether a field's value meets a demand."""
    there = value is not None and value != ()
    if demand.present is not None and there != demand.present:
        return False
    asked = [name for name in ASKED if name != "present" and getattr(demand, name) is not None]
    if not there and asked:
        default = "passes" if asked == ["none_of"] or demand.present is False else "fails"
        return (demand.absent or default) == "passes"
    return all(_meets(name, parsed(demand, name, shape), value) for name in asked)


def _meets(name: str, asked: Any, value: Any) -> bool:
    """Whether a value that is there meets one demand."""
    items = value if isinstance(value, tuple) else (value,)
    match name:
        case "equals":
            return _same(value, asked)
        case "one_of":
            return any(_same(value, each) for each in asked)
        case "none_of":
            return not any(_same(item, each) for item in items for each in asked)
        case "only":
            return all(any(_same(item, each) for each in asked) for item in items)
        case "has":
            return all(any(_same(item, each) for item in items) for each in asked)
        case "at_least":
            return bool(value >= asked)
        case "at_most":
            return bool(value <= asked)
        case _:
            return bool(len(items) >= asked)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)  # 1 is not true


def _found(shape: FieldShape, place: FieldPlace) -> str:
    """Return a place's value as a policy has it, shortened."""
    if place.value is None or place.value == ():
        return "absent"
    if shape.kind is None:
        return quantity(len(place.value), "block") if isinstance(place.value, tuple) else "there"
    text = literal.text(shape.kind, place.value) or "absent"
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST - 3]}..."


def wanted(demand: Demand) -> str:
    """Say what a demand asks for."""
    return "; ".join(_words(demand))


def _words(demand: Demand) -> Iterator[str]:
    if demand.present is not None:
        yield "present" if demand.present else "absent"
    for name, words in (("equals", "{}"), ("one_of", "one of {}"), ("none_of", "none of {}"),
                        ("only", "nothing but {}"), ("has", "at least {}"), ("at_least", "{} or more"),
                        ("at_most", "{} or less"), ("count", "{} or more of them")):
        if (value := getattr(demand, name)) is not None:
            yield words.format(", ".join(map(shown, value)) if isinstance(value, tuple) else shown(value))
    if demand.absent == "passes":
        yield "or absent"


def _fix(rule: BaselineRule) -> str:
    """Say what to write, where the demand tells it."""
    name = rule.field.rpartition(".")[2]
    listed = isinstance(_shape(rule).kind, SetOf)
    if rule.present is False:
        return f"leave out {name}"
    for asked in ("equals", "at_least", "at_most"):
        if (value := getattr(rule, asked)) is not None:
            return f"write {name} = {shown(value)}" + (" or more" if asked == "at_least" else "")
    if rule.one_of is not None:
        return f"write {name} = {' or '.join(map(shown, rule.one_of))}"
    if rule.has is not None:
        return f"add {', '.join(map(shown, rule.has))} to {name}"
    if rule.only is not None or rule.none_of is not None:
        words = "nothing but" if rule.only is not None else "none of"
        return f"write {words} {', '.join(map(shown, rule.only or rule.none_of))}" + (f" in {name}" if listed else "")
    return f"add {name}" if rule.count is None else f"add {name} until there are {rule.count}"
