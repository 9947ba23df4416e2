"""What a judge takes along: OSCAL, the log's records as CSV, and a report to sign, on an entity and a period."""

from __future__ import annotations

import csv
import functools
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from appliance.auditor.claims import controls
from appliance.auditor.claims.case import Case
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.judge import Outcome
from appliance.auditor.report import engagement, oscal, population
from appliance.auditor.report.engagement import Engagement
from appliance.cli.main import main
from appliance.errors import AuditError
from appliance.transparency.tree import leaf_hash
from tests.support import folders, packs
from tests.support.expected import ROOT
from tests.support.require import absent

SCHEMA = ROOT / "tests/goldens/oscal-assessment-results-1.2.1.json"  # NIST's own, without its descriptions


@functools.cache
def _papers() -> packs.Papers:
    return packs.deployment(folders.lasting("exports"), requests=24)


@functools.cache
def _found() -> Outcome:
    return judge.judge(judge.written(gather.members(_papers().files), _papers().given)[0], _papers().given)


def _python(schema: Any) -> Any:
    """The schema with classes of letters and digits as Python spells them."""
    if isinstance(schema, dict):
        return {name: _class(value) if isinstance(value, str) else _python(value) for name, value in schema.items()}
    return [_python(each) for each in schema] if isinstance(schema, list) else schema


def _class(pattern: str) -> str:
    return pattern.replace(r"(\p{L}|_)(\p{L}|\p{N}|[.\-_])*", r"[a-zA-Z_][a-zA-Z0-9.\-_]*")


@functools.cache
def _validator() -> Draft7Validator:
    return Draft7Validator(_python(json.loads(SCHEMA.read_text("utf-8"))))


def _oscal(about: Engagement | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_found().oscal(about))
    return found


def test_oscal_is_valid_by_nists_schema() -> None:
    """With an entity and a period, and without; a change that the schema forbids is found."""
    for about in (None, Engagement("A hospital", engagement.period("2026-01-01/2026-06-30"))):
        assert [] == [f"{list(each.path)}: {each.message}" for each in _validator().iter_errors(_oscal(about))]
    wrong = _oscal()
    wrong["assessment-results"]["results"][0]["findings"][0]["target"]["status"]["state"] = "covered"
    assert [*_validator().iter_errors(wrong)]


@pytest.mark.soak
def test_trestle_reads_oscal(tmp_path: Path) -> None:
    """The library of another project. It brings twenty packages more, so it is not among the locked ones."""
    try:
        from trestle.oscal import assessment_results as models
    except ImportError:
        absent("compliance-trestle: pip install compliance-trestle")
    (tmp_path / "results.json").write_bytes(_found().oscal())
    read = models.AssessmentResults.oscal_read(tmp_path / "results.json")
    assert len(_found().frameworks) == len(read.results)


def test_oscal_says_what_the_judgement_says() -> None:
    """Each claim that controls rest on, and each control; in part is not satisfied."""
    for (framework, judged), result in zip(_found().frameworks, _oscal()["assessment-results"]["results"], strict=True):
        assert framework.framework == result["title"]
        said = [each["target"]["status"] for each in result["findings"]]
        assert [each.status for each in judged] == [each["remarks"] for each in said]
        assert ["satisfied" if each.status == "covered" else "not-satisfied" for each in judged] == [
            each["state"] for each in said]
        outcomes = {each["title"]: each["props"][0]["value"] for each in result.get("observations", [])}
        used = {name for each in judged for name in each.control.claims}
        assert {name: _found().findings[name].outcome.replace(" ", "-") for name in used} == outcomes
        ids = {each["uuid"] for each in result.get("observations", [])}
        assert ids == {each["observation-uuid"] for item in result["findings"]
                       for each in item.get("related-observations", [])}


def test_oscal_names_controls_as_nists_catalogue_does() -> None:
    """In lower case, an enhancement behind a dot, a lettered part in the statement."""
    (result,) = [each for each in _oscal()["assessment-results"]["results"] if each["title"].startswith("NIST")]
    ids = [each["control-id"] for each in result["reviewed-controls"]["control-selections"][0]["include-controls"]]
    assert {"au-9.3", "si-7.9", "sc-13", "cm-3"} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert {"cm-3_smt.e", "au-9.3_smt"} <= {each["target"]["target-id"] for each in result["findings"]}


def test_oscal_turns_with_the_evidence() -> None:
    """Simulated or absent evidence leaves no control of hardware in part; the same pack gives the same bytes."""
    members = {name: content for name, content in gather.members(_papers().files).items()
               if not name.startswith("evidence/")}
    less = judge.judge(judge.written(members, _papers().given)[0], _papers().given)
    found = json.loads(less.oscal())["assessment-results"]["results"]
    for framework, judged in less.frameworks:
        (result,) = [each for each in found if each["title"] == framework.framework]
        said = {each["title"].split()[0]: each["props"][0]["value"] for each in result["findings"]}
        for each in judged:
            if any(name.startswith("evidence-") for name in each.control.claims):
                assert said[each.control.id.split()[0]] in ("not-covered", "failed")
    assert _found().oscal() == _found().oscal()
    assert less.oscal() != _found().oscal()


def _rows(case: Case, period: engagement.Interval | None = None) -> list[dict[str, str]]:
    data, count = population.table(case, period)
    found = list(csv.DictReader(io.StringIO(data.decode())))
    assert count == len(found)
    return found


def test_the_population_is_every_record() -> None:
    """In order, each with the leaf that its line has; what is sealed is told where the judge has no key."""
    case = Case(gather.members(_papers().files), _papers().given)
    lines = _papers().lines
    rows = _rows(case)
    assert [leaf_hash(line[:-1]).hex() for line in lines] == [each["leaf"] for each in rows]
    assert [str(number) for number in range(len(lines))] == [each["seq"] for each in rows]
    done = [each for each in rows if each["event"] == "request.done" and each["tenant"]]
    assert {"ward", "lab"} == {each["tenant"] for each in done}
    assert {"429"} == {each["status"] for each in rows if each["event"] == "request.refused" and each["status"]}
    closed = _rows(Case(gather.members(_papers().files), replace(_papers().given, period_keys={})))
    assert {("", "yes")} == {(each["tenant"], each["sealed"]) for each in closed if each["event"] == "request.done"}
    assert any(each["proved"] == "yes" for each in rows)


def test_nothing_is_proved_without_evidence() -> None:
    """Nor without the keys of witnesses that a policy has. Records after the first bad one are not in it."""
    members = {name: content for name, content in gather.members(_papers().files).items()
               if name.startswith("log/audit")}
    assert {"no"} == {each["proved"] for each in _rows(Case(members, replace(_papers().given, anchors=())))}
    lines = _papers().lines
    members["log/audit.jsonl"] = b"".join([*lines[:9], lines[9].replace(b'"seq":9', b'"seq":8'), *lines[10:]])
    assert len(_rows(Case(members, _papers().given))) <= 9


def test_a_period_chooses_rows() -> None:
    """Its last day belongs to it; a record of another day does not."""
    case = Case(gather.members(_papers().files), _papers().given)
    days = sorted({each["time"][:10] for each in _rows(case)})
    assert len(days) > 1
    found = _rows(case, engagement.period(f"{days[-1]}/{days[-1]}"))
    assert {days[-1]} == {each["time"][:10] for each in found}
    assert [] == _rows(case, engagement.period("1999-01-01/1999-12-31"))


def test_a_cell_is_no_formula() -> None:
    """Whatever a spreadsheet would compute is text."""
    assert ["'=1+1", "'@x", "ward"] == [population._cell(each) for each in ("=1+1", "@x", "ward")]


@pytest.mark.parametrize("text", ["2026-01-01", "2026-06-30/2026-01-01", "a/b", "2026-02-31/2026-03-01", "/", ""])
def test_a_period_that_is_none_is_refused(text: str) -> None:
    """With the form that it has."""
    with pytest.raises(AuditError, match="not a period"):
        engagement.period(text)


def test_a_period_has_its_last_day() -> None:
    """Not the day after; a time at its end is the end."""
    found = engagement.period("2026-01-01/2026-06-30")
    assert [True, True, False, False] == [found.has(each) for each in (
        "2026-01-01T00:00:00Z", "2026-06-30T23:59:59Z", "2026-07-01T00:00:00Z", "2026-02-31T00:00:00Z")]
    assert not engagement.period("2026-01-01T06:00:00Z/2026-01-01T07:00:00Z").has("2026-01-01T07:00:00Z")


def test_a_judges_report_has_a_place_to_sign() -> None:
    """Entity, period and whether the log reaches over it; the packer's own report has none of them."""
    first, last = (json.loads(_papers().lines[place])["time"][:10] for place in (0, -1))

    def shown(about: Engagement | None) -> str:
        return html.unescape(re.sub(r"<[^>]+>", " ", _found().page(about).decode()))

    whole = shown(Engagement("A <b>hospital</b>", engagement.period(f"{first}/{last}")))
    for part in ("For signature", "A <b>hospital</b>", f"{first} to {last}", "They reach over the period.", "Signature",
                 "Place and date", _found().sha256):
        assert part in whole, part
    assert "begin after the period does and end before the period does" in shown(
        Engagement("A", engagement.period("1999-01-01/2099-12-31")))
    assert "not named" in shown(None)
    assert b"For signature" not in _found().case.members["report.html"]


def test_the_command_writes_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Report, OSCAL and CSV; without a log there is no population, and a period in no form is refused."""
    pack = tmp_path / "pack.zip"
    pack.write_bytes(judge.written(gather.members(_papers().files), _papers().given)[0])
    words = ["audit", "pack", "verify", str(pack), *_papers().judging(), "--entity", "A hospital",
             "--period", "2020-01-01/2030-12-31"]
    names = {name: str(tmp_path / name) for name in ("own.html", "results.json", "records.csv")}
    assert 0 == main([*words, "--report", names["own.html"], "--oscal", names["results.json"],
                      "--population", names["records.csv"]])
    assert f"rows written: {len(_papers().lines)}" in capsys.readouterr().err
    assert "A hospital" == json.loads(Path(names["results.json"]).read_bytes())[
        "assessment-results"]["metadata"]["parties"][0]["name"]
    assert b"A hospital" in Path(names["own.html"]).read_bytes()
    assert 1 + len(_papers().lines) == Path(names["records.csv"]).read_bytes().count(b"\r\n")
    bare = tmp_path / "bare.zip"
    bare.write_bytes(judge.written({}, _papers().given)[0])
    assert 2 == main(["audit", "pack", "verify", str(bare), "--population", names["records.csv"]])
    with pytest.raises(SystemExit):
        main([*words[:-1], "last year"])
    assert "FROM/TO" in capsys.readouterr().err


def test_every_target_is_a_token() -> None:
    """Of each control that comes with the appliance; none twice in a framework."""
    for framework in controls.own():
        targets = [oscal._target(framework.framework, each.id)[1] for each in framework.controls]
        assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9._-]*", each) for each in targets)
        assert len(set(targets)) == len(targets)
