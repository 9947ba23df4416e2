"""Tables of measured leakage in a pack: taken as they were made, shown in the report, refused if they were altered."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor.archive import manifest
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.gather import Files
from appliance.cli.main import main
from appliance.errors import AuditError
from benchmarks.leakage import bounds, document
from tests.auditor.test_pack import _papers

FACTS: dict[str, Any] = {"policy": "strict", "policy_sha384": "ab" * 48, "model": "m.gguf", "trials": 100}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the harness, as it is written."""
    verdict = bounds.Verdict(100, 50, 0.001, 0.0, 0.04)
    path = tmp_path / "leakage-strict.json"
    path.write_text(json.dumps(document.document(FACTS, [
        document.cell("length", "socket", {"trees": verdict}, again=False)]), indent=1))
    return path


def test_the_digest_is_that_of_the_rest_in_canonical_form(run: Path) -> None:
    """Sorted keys and no spaces give RFC 8785's text of these values, but for floats that are whole."""
    found = json.loads(run.read_text())
    digest = found.pop("digest")
    assert hashlib.sha256(json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False).replace(
        ":0.0,", ":0,").encode()).hexdigest() == digest


def test_the_report_shows_it(run: Path) -> None:
    """With its policy, its run and its bounds; who judges the pack finds the same report."""
    members = gather.members(Files(leakage=[run]))
    assert {"leakage/leakage-strict.json": run.read_bytes()} == members
    data, _ = judge.written(members, _papers().given)
    page = manifest.unpack(data)[1]["report.html"].decode()
    assert json.loads(run.read_text())["digest"] in page
    assert "<td>length</td><td>socket</td><td>50.0 (≤ 58.6)</td><td>0.001 (≤ 0.040)</td>" in page
    assert "holds" == judge.judge(data, _papers().given).report.outcome
    assert "leakage" not in manifest.unpack(data)[0].missing


def test_a_pack_without_one_is_as_before() -> None:
    """It lacks nothing for it, so packs of earlier versions stay whole."""
    data, _ = judge.written({}, _papers().given)
    assert "leakage" not in manifest.unpack(data)[0].missing
    assert b"What an onlooker can tell" not in manifest.unpack(data)[1]["report.html"]


def test_a_file_that_is_no_run_is_named() -> None:
    """A packer may put anything there: the report has the rest, and says so."""
    data, _ = judge.written({"leakage/leakage-x.json": b"<x>"}, _papers().given)
    page = manifest.unpack(data)[1]["report.html"].decode()
    assert "<p>leakage/leakage-x.json cannot be shown: leakage: " in page
    assert "<x>" not in page


@pytest.mark.parametrize("change", [
    {"policy": "open"}, {"cells": []}, {"format": "appliance/leakage/v2"}, {"policy_sha384": "<b>"},
    {"digest": "0" * 64}], ids=lambda change: next(iter(change)))
def test_an_altered_run_is_not_taken(change: dict[str, Any], run: Path, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, in words."""
    run.write_text(json.dumps(json.loads(run.read_text()) | change))
    with pytest.raises(AuditError, match="leakage: "):
        gather.members(Files(leakage=[run]))
    assert 2 == main(["audit", "pack", "-o", str(tmp_path / "pack.zip"), "--leakage", str(run)])
    assert "leakage: " in capsys.readouterr().err
