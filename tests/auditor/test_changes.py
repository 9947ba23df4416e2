"""What requests changed is in the log, with who asked: loads, swaps, wipes and refusals of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.auditor.claims.case import Case, Given
from appliance.auditor.claims.table import CLAIMS
from appliance.cli.main import main
from tests.support import packs
from tests.support.log_by_spec import LogBySpec

REQUEST = "req-" + "0b" * 16
LOADED = {"model": "demo", "sha256": "cd" * 32, "generation": 2}


def _log(version: int, **asker: str) -> LogBySpec:
    log = LogBySpec()
    log.begin(version)
    log.write("boot.model", model="demo", sha256="cd" * 32)
    log.write("model.loaded", **LOADED, **asker)
    log.write("model.unloaded", model="other", generation=2, **asker)
    log.write("model.wiped", model="other", **asker)
    log.write("model.refused", model="third", code="model_load_failed", **asker)
    return log


def _found(log: LogBySpec) -> tuple[str, str]:
    case = Case({"log/audit.jsonl": b"".join(log.data)}, Given(packs.NOW))
    found = CLAIMS["log-changes"].finding(case)
    return found.outcome, found.detail


def test_each_change_is_listed_with_who_asked() -> None:
    """By its record's number, its model, the tenant and the request."""
    outcome, detail = _found(_log(3, request=REQUEST, tenant="ops"))
    assert "holds" == outcome
    assert "boot.model 1, model.loaded 1, model.unloaded 1, model.wiped 1, model.refused 1" in detail
    for number, what in ((2, "model.loaded demo"), (3, "model.unloaded other"), (4, "model.wiped other"),
                         (5, "model.refused third")):
        assert f"record {number}: {what}, ops asked by {REQUEST}" in detail


def test_a_log_of_before_names_nobody() -> None:
    """Its changes are listed as well, and the report says that it does not know whose they were."""
    outcome, detail = _found(_log(2))
    assert ("holds", True) == (outcome, "record 2: model.loaded demo, whoever asked is not named" in detail)


def test_a_change_of_nobody_is_a_fault() -> None:
    """Of version 3, which has to say who asked."""
    outcome, detail = _found(_log(3, request=REQUEST))
    assert ("fails", True) == (outcome, "the first is record 2" in detail)


def test_many_changes_are_counted() -> None:
    """The first of them are listed."""
    log = _log(3, request=REQUEST, tenant="ops")
    for _ in range(100):
        log.write("model.loaded", **LOADED, request=REQUEST, tenant="ops")
    outcome, detail = _found(log)
    assert ("holds", 40, True) == (outcome, detail.count("asked by"), "and 64 more changes" in detail)


@pytest.mark.parametrize("version", [2, 3])
def test_the_report_has_them(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the page for people, and in JSON."""
    asker = {"request": REQUEST, "tenant": "ops"} if version == 3 else {}
    log, pack, page = _log(version, **asker), tmp_path / "pack.zip", tmp_path / "report.html"
    (tmp_path / "audit.jsonl").write_bytes(b"".join(log.data))
    main(["audit", "pack", "-o", str(pack), "--log", str(tmp_path / "audit.jsonl")])
    capsys.readouterr()
    main(["audit", "pack", "verify", str(pack), "--report", str(page), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["claims"]["log-changes"]
    for text in (found["detail"], page.read_text()):
        assert "record 4: model.wiped other" in text
        assert (version == 3) == (f"ops asked by {REQUEST}" in text)
