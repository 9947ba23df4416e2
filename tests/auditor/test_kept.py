"""How long records are kept: two claims with days, and what clauses of frameworks ask for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from appliance.auditor.claims import controls
from appliance.auditor.claims.case import Case, Given
from appliance.auditor.claims.retention import least_days
from appliance.auditor.claims.table import CLAIMS
from appliance.cli.check import UNBOOTABLE
from appliance.cli.main import main
from appliance.errors import AuditError
from appliance.policy import load
from tests.support import packs

POLICY = "policy/deployment.hcl"
HOUSE = """
format    = "appliance/controls/v1"
framework = "House rules"
source    = "Handbook, 2026"
[[control]]
id        = "H-9"
title     = "Logs"
claims    = ["policy-kept"]
shows     = "Records are kept."
kept_days = {days}
"""


def _policy(folder: Path, retention: str) -> Path:
    """The deployment of the packs, with records that are destroyed at an age."""
    place = folder / "deployment.hcl"
    place.write_text(packs.POLICY.replace(packs.ROOT, "ab" * 32).replace(packs.RETENTION, retention))
    return place


def _said(place: Path) -> dict[str, tuple[str, str]]:
    """What the two claims say of a policy."""
    case = Case({POLICY: place.read_bytes()}, Given(packs.NOW))
    found = [CLAIMS[name].finding(case) for name in ("policy-kept", "policy-destroyed")]
    return {each.rule: (each.outcome, each.detail) for each in found}


@pytest.mark.parametrize(("age", "least", "most"), [
    ("1h", "0.03 days", "0.05 days"), ("24h", "0.95 days", "1 days"), ("48d", "46 days", "48 days"),
    ("365d", "349.79 days", "365 days")])
def test_kept_and_destroyed_are_two_claims(age: str, least: str, most: str, tmp_path: Path) -> None:
    """Each with its days: the last record of a period lives a 24th less than the first."""
    said = _said(_policy(tmp_path, f'retention {{ audit = "{age}" }}'))
    assert {"policy-kept": ("holds", f"{least} at least"), "policy-destroyed": ("holds", f"{most} at most")} == said


def test_nothing_is_destroyed_without_an_age(tmp_path: Path) -> None:
    """Then records are kept, and no claim says that they go."""
    said = _said(_policy(tmp_path, ""))
    assert [("holds", "none is destroyed"), "not checked"] == [said["policy-kept"], said["policy-destroyed"][0]]


def test_lines_that_leave_are_kept_by_nobody_here(tmp_path: Path) -> None:
    """A log on standard output is its collector's: the policy does not say how long it is kept."""
    place = _policy(tmp_path, "")
    place.write_text(place.read_text().replace('sink                = "state"', ""))
    assert "not checked" == _said(place)["policy-kept"][0]


def test_audit_record_retention_does_not_rest_on_destroying() -> None:
    """NIST's AU-11 asks that records are retained; their disposal is another control."""
    nist, = (each for each in controls.own() if "800-53" in each.framework)
    claims = {each.id: each.claims for each in nist.controls}
    assert {"policy-kept", "log-kept"} <= set(claims["AU-11"])
    assert "policy-destroyed" not in claims["AU-11"]
    assert {"policy-destroyed", "log-expired"} <= set(claims["SI-12(3)"])


@pytest.mark.parametrize(("retention", "days", "status"), [
    ('retention { audit = "1h" }', 184, "failed"), ('retention { audit = "191d" }', 184, "failed"),
    ('retention { audit = "192d" }', 184, "covered"), ("", 36_600, "covered")])
def test_a_control_asks_for_days(retention: str, days: int, status: str, tmp_path: Path) -> None:
    """Fewer than it asks for speak against it."""
    place, house = _policy(tmp_path, retention), controls.parse(HOUSE.format(days=days).encode(), "house.toml")
    case = Case({POLICY: place.read_bytes()}, Given(packs.NOW))
    findings = {"policy-kept": CLAIMS["policy-kept"].finding(case)}
    judged, = controls.judge(house, findings, least_days(load(place).policy))  # type: ignore[arg-type]
    assert status == judged.status


def _checked(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert main(["check", *words, "--json"]) in (0, UNBOOTABLE)  # whether it boots is another question
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["diagnostics"]
    return [each for each in found if each["code"] == "controls"]


def test_check_warns_of_records_that_are_destroyed_too_early(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a mapping says so: at the field's place, with the days that would do."""
    place, house = _policy(tmp_path, 'retention { audit = "30d" }'), tmp_path / "house.toml"
    house.write_text(HOUSE.format(days=184))
    assert [] == _checked([str(place)], capsys)
    warning, = _checked([str(place), "--controls", str(house)], capsys)
    assert ("warning", "privacy.retention.audit") == (warning["severity"], warning["path"])
    assert "28.75 days at least, and House rules, H-9, wants 184 days" in warning["summary"]
    assert 'audit = "192d"' in warning["fix"]
    assert 'audit = "30d"' in place.read_text().splitlines()[int(warning["line"]) - 1]
    for retention in ('retention { audit = "192d" }', ""):
        assert [] == _checked([str(_policy(tmp_path, retention)), "--controls", str(house)], capsys)


def test_a_mapping_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names of ours."""
    assert 2 == main(["check", str(_policy(tmp_path, "")), "--controls", "hippa"])
    assert "hipaa" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["kept_days = 0", "kept_days = \"6\"", "kept_days = 1.5", "kept_days = 40000"])
def test_days_are_whole(line: str) -> None:
    """And in bounds; and they need the claim that they are compared with."""
    other = HOUSE.format(days=1).replace("policy-kept", "policy-limits")
    for text in (HOUSE.replace("kept_days = {days}", line), other):
        with pytest.raises(AuditError, match="not a mapping of controls"):
            controls.parse(text.encode(), "house.toml")


@pytest.mark.parametrize(("name", "clauses", "days"), [
    ("eu-ai-act-records", {"19(1)", "26(6)"}, 184), ("hipaa-administrative", {"164.316(b)(2)(i)"}, 6 * 365 + 2)])
def test_clauses_of_months_and_years(
        name: str, clauses: set[str], days: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six months are 184 days at most, six years have two leap days: a policy below is told, one above is not."""
    for age, warned in ((f"{days}d", clauses), (f"{math.ceil(days * 24 / 23)}d", set())):
        found = _checked([str(_policy(tmp_path, f'retention {{ audit = "{age}" }}')), "--controls", name], capsys)
        assert warned == {clause for clause in clauses if any(
            f", {clause}, wants {days} days" in each["summary"] for each in found)}
        assert len(warned) == len(found)


def test_a_mapping_of_before_has_the_name_of_before() -> None:
    """`policy-retention` was judged by the age at which records are destroyed."""
    text = HOUSE.replace("kept_days = {days}", "").replace("policy-kept", "policy-retention")
    assert ("policy-destroyed",) == controls.parse(text.encode(), "house.toml").controls[0].claims
