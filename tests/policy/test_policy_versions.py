"""The versions of the policy language: what a file of each version may hold, and what the program reads from it."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import pytest
from pydantic import Field

from appliance.policy import rules
from appliance.policy.explaining.binding import ExplainingBinder
from appliance.policy.explaining.checking import check
from appliance.policy.explaining.parser import parse_text
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Diagnostic, SourceText
from appliance.policy.language import differences
from appliance.policy.language.tables import from_code
from appliance.policy.rules import Breach
from appliance.policy.schema import frozen
from appliance.policy.schema.base import Block, fields
from appliance.policy.schema.kinds import Duration, Pick, SetOf, Whole
from appliance.policy.schema.versions import Since, Until, Was
from tests.support.policies import BASE, in_schema, valid, with_lines

VAULT = """\
  key {
    provider = "vault"
    vault {
      url         = "https://vault.example"
      root_sha256 = "1fcfd0c1a5a7e9a37a3c6f60fc6b6c5c1d43ad4cda8d0b8be0d1f0a4e3d7a6b5"
      key_name    = "transit"
    }
  }
  sealed_header_sha256 = "3c9e1b7d5f0a8264c2e4d6b8fa1c3e5079b1d3f5a7c9e0b2d4f6a8c0e1b3d5f7"
"""


def errors(text: str) -> list[Diagnostic]:
    """Return the errors in a text."""
    return [found for found in check(text).diagnostics if found.severity == "error"]


@pytest.mark.parametrize(("lines", "reads"), [
    ("queued_requests = 0", (0, None)), ('answer_timeout = "90s"', (256, 90_000)),
    ('queued_requests = 65536\nanswer_timeout = "24h"', (65_536, 86_400_000)),
])
def test_new_fields_are_of_schema_2(lines: str, reads: tuple[int, int | None]) -> None:
    """Schema 2 takes the fields; schema 1 refuses each by name, and says that schema 2 has it and what to do."""
    limits = valid(in_schema(2, with_lines("limits", lines))).limits
    assert reads == (limits.queued_requests, limits.answer_timeout_ms)
    found = errors(with_lines("limits", lines))
    assert [line.split()[0] + " is a field of schema 2" for line in lines.splitlines()] == [d.summary for d in found]
    for each in found:
        assert "unknown-key" == each.code
        assert "write schema = 2 (`appliance check --upgrade FILE` does), or leave this out" == each.fix
        assert "prompt_tokens" in each.detail


@pytest.mark.parametrize(("lines", "words"), [
    ("queued_requests = -1", "-"), ("queued_requests = 65537", "is 65537"), ('answer_timeout = "999ms"', '"999ms"'),
    ('answer_timeout = "25h"', '"25h"'), ("answer_timeout = 90", "not a string"),
])
def test_new_fields_end_where_they_say(lines: str, words: str) -> None:
    """A value beyond a new field's bounds is one error with a fix."""
    found = errors(in_schema(2, with_lines("limits", lines)))
    assert 1 == len(found)
    assert words in str(found[0])
    assert found[0].fix


def test_misspelled_and_misplaced_fields_of_schema_2() -> None:
    """Under schema 1, a field of schema 2 is recognised although it is misspelled or stands in another block."""
    assert ["did you mean queued_requests? It is a field of schema 2"] == [
        each.fix for each in errors(with_lines("limits", "queued_request = 1"))]
    assert ["move it to limits of schema 2"] == [
        each.fix for each in errors(with_lines("audit", "queued_requests = 1"))]
    assert ["move it to limits"] == [
        each.fix for each in errors(in_schema(2, with_lines("audit", "queued_requests = 1")))]


def test_vault_ended_with_schema_1() -> None:
    """Schema 1 still takes the provider and its block; schema 2 refuses both, and says what to use."""
    text = with_lines("model", VAULT)
    old = valid(text).models[0].key
    assert old is not None
    assert old.vault is not None
    assert ("vault", "transit") == (old.provider, old.vault.key_name)
    found = errors(in_schema(2, text))
    assert ['provider is "vault", which ended with schema 1', "vault ended with schema 1"] == [d.summary for d in found]
    for each in found:
        assert 'use provider = "broker" and a broker block' in each.fix
    assert "vault" not in found[0].detail


@pytest.mark.parametrize("version", [3, 4, 2**53 - 1])
def test_a_version_to_come_is_one_error(version: int) -> None:
    """Of a newer file nothing but its version is judged, since its fields are unknown here."""
    text = in_schema(version, with_lines("limits", "from_the_future = true\nprompt_tokens = \"many\""))
    found = errors(text)
    assert [f"schema is {version}, but this version of the appliance knows 1 and 2"] == [d.summary for d in found]
    assert "write 2, or use a newer appliance" == found[0].fix
    assert (3, 12) == (found[0].line, found[0].column)


@pytest.mark.parametrize(("value", "words"), [
    ("0", "is 0, but"), ('"1"', "is a string"), ("true", "is a boolean"), ("1.5", "is a number"),
    ('"x"', "is a string")])
def test_a_version_that_is_none(value: str, words: str) -> None:
    """Anything else than a known version is one error, at its place."""
    found = errors(BASE.replace("schema = 1", f"schema = {value}"))
    assert 1 == len(found)
    assert words in found[0].summary
    assert (3, 12) == (found[0].line, found[0].column)
    assert found[0].fix


def test_the_older_version_is_meant_by_its_number_in_quotes() -> None:
    """A file that says "1" is judged by schema 1, so that the quotes are all that is found."""
    text = with_lines("model", VAULT).replace("schema = 1", 'schema = "1"')
    assert ["schema is a string, not a whole number"] == [found.summary for found in errors(text)]


def test_an_object_may_declare_the_version() -> None:
    """A file that writes `appliance` as an object is judged by the version in it; the object is all that is found."""
    text = with_lines("model", VAULT).replace("appliance {", "appliance = {")
    assert ["appliance is a block, not an attribute"] == [found.summary for found in errors(text)]


@pytest.mark.parametrize(("version", "severity"), [(1, "warning"), (2, "error")])
def test_new_refusals_are_warnings_under_schema_1(version: int, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that came with schema 2 leaves a file of schema 1 valid; a warning stays one under both."""
    def rule(policy: Any) -> Any:
        yield Breach(("limits",), "this came later", "mend it", since=2)
        yield Breach(("limits",), "this is a hint", "look at it", severity="warning", since=2)

    monkeypatch.setattr(rules, "POLICY_RULES", (*rules.POLICY_RULES, rule))
    checked = check(in_schema(version))
    assert [(severity, "this came later"), ("warning", "this is a hint")] == [
        (found.severity, found.summary) for found in checked.diagnostics]
    assert (version == 1) == checked.valid


class Floor(Block):
    """One lowest version."""

    snp: Annotated[int, Whole(0, 255)] = Field(default=0, description="The lowest.")


class LineFloor(Floor):
    """The lowest version of one product line."""

    LABEL = "line"

    line: Annotated[str, Pick(("milan", "genoa"))] = Field(description="The line.")


def floor_of_each(block: Any) -> tuple[LineFloor, ...]:
    """One floor for each line, as the older version meant its only one."""
    return tuple(LineFloor(line=line, snp=block["floor"].snp) for line in block["lines"])


class Sample(Block):
    """A block whose fields differ between the versions in every way that the markers know."""

    lines: Annotated[tuple[str, ...], SetOf(Pick(("genoa", "turin"))),
                     Was(1, SetOf(Pick(("genoa", "milan"))), instead="leave milan out")] = Field(
        default=("genoa",), description="The lines.")
    age_ms: Annotated[int, Duration("1h", "400d"), Was(1, Duration("1h", "365d"), "The age of all.")] = Field(
        alias="age", default=3_600_000, description="The age of lists.")
    floor: Annotated[Floor, Until(1, "write a floor for each line", reads=Floor())] = Field(
        default_factory=Floor, description="The one floor.")
    floors: Annotated[tuple[LineFloor, ...], Since(2, derive=floor_of_each)] = Field(
        alias="floor", default=(), description="The floors.")
    added: Annotated[int | None, Whole(0, 9), Since(2, reads=None, keep=0)] = Field(default=5, description="New.")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, frozen.Entry]]:
    """Use the tables that the sample class states, with another default in the older one."""
    made = {version: dict(from_code(version, Sample)) for version in frozen.VERSIONS}
    made[1]["lines"] = {"default": ["genoa", "milan"]}
    monkeypatch.setattr(frozen, "table", made.__getitem__)
    return made


def bound(version: int, text: str) -> tuple[Any, list[str]]:
    """Return the sample that a text gives in a version, and what was found."""
    report = FullReport(SourceText(text, ""))
    block = ExplainingBinder(report, version).block(Sample, parse_text(text), (), "")
    return block, [f"{found.summary}; {found.fix}" for found in report.sorted()]


def test_one_name_may_be_two_fields(tables: dict[int, dict[str, frozen.Entry]]) -> None:
    """A block may change its shape: each version has its own field of the name, and the program reads one of them."""
    assert [{"block": "always"}, {"block": "labelled"}] == [tables[version]["floor"] for version in frozen.VERSIONS]
    old, found = bound(1, "floor { snp = 7 }")
    assert [] == found
    assert [("genoa", 7), ("milan", 7)] == [(floor.line, floor.snp) for floor in old.floors]
    new, found = bound(2, 'floor "genoa" { snp = 8 }')
    assert [] == found
    assert (0, [("genoa", 8)]) == (new.floor.snp, [(floor.line, floor.snp) for floor in new.floors])
    assert ['floor takes no label in schema 1; delete "genoa", or write schema = 2'] == bound(
        1, 'floor "genoa" { snp = 8 }')[1]


def test_a_default_is_its_version_s(tables: dict[int, dict[str, frozen.Entry]]) -> None:
    """The table of the declared version decides on a default."""
    assert [("genoa", "milan"), ("genoa",)] == [bound(version, "")[0].lines for version in frozen.VERSIONS]
    assert [None, 5] == [bound(version, "")[0].added for version in frozen.VERSIONS]


@pytest.mark.parametrize(("version", "text", "finding"), [
    (1, 'lines = ["turin"]', 'an item of lines is "turin", which schema 2 allows; write schema = 2'),
    (2, 'lines = ["genoa", "milan"]', 'an item of lines is "milan", which ended with schema 1; leave milan out'),
    (1, 'age = "400d"', 'age is "400d", which schema 2 allows; write schema = 2'),
    (2, 'age = "401d"', 'age is "401d", outside of what is allowed; the nearest allowed is "400d"'),
    (1, "added = 1", "added is a field of schema 2; write schema = 2"),
])
def test_values_of_another_version(tables: dict[int, dict[str, frozen.Entry]], version: int, text: str,
                                   finding: str) -> None:
    """A value that another version allows is named as one of that version."""
    found = bound(version, text)[1]
    assert 1 == len(found)
    assert found[0].startswith(finding)


def test_what_is_derived_from_a_wrong_field_is_missing(tables: dict[int, dict[str, frozen.Entry]]) -> None:
    """A field that cannot be derived is missing as the wrong one is, so that rules on it are skipped."""
    block, found = bound(1, 'lines = ["oslo"]')
    assert 1 == len(found)
    assert {"age_ms", "floor", "added"} == set(block.__dict__)


def test_a_changed_meaning_is_described_by_version() -> None:
    """The description of a field is its version's."""
    assert ["The age of all.", "The age of lists."] == [
        next(shape.description for shape in fields(Sample, version) if shape.name == "age")
        for version in frozen.VERSIONS]


def test_differences_name_each_kind(tables: dict[int, dict[str, frozen.Entry]],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way in which a field may differ has its words: form, choices, default, bounds, meaning, new."""
    monkeypatch.setattr(differences, "between", functools.partial(differences.between, cls=Sample))
    rows = dict(line.strip("| ").split(" | ", 1) for line in "".join(differences.markdown(2)).splitlines()
                if line.startswith("| `"))
    assert {
        "`lines`": 'New: "turin". Ended: "milan". Instead, leave milan out. The default is `["genoa"]`; in schema 1: '
                   '`["genoa", "milan"]`.',
        "`age`": 'Allowed: a duration from "1h" to "400d"; in schema 1: a duration from "1h" to "365d".',
        "`floor`": "Another form. The floors. In schema 1: The one floor. Write a floor for each line.",
        "`added`": "New. New.",
    } == rows
    assert [] == list(differences.markdown(1))
