"""A time of judgement that a pack's evidence does not bear: told, with the times that it does."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from appliance.auditor.claims.case import Case
from appliance.auditor.pack import judge
from appliance.auditor.report import span
from appliance.cli.main import main
from tests.auditor import test_claims as claims
from tests.support import packs
from tests.support.fake_amd import NOW


def test_a_time_that_is_borne_needs_no_word() -> None:
    """The genuine pack at its own time."""
    assert [] == span.warnings(Case(*claims._genuine()))


@pytest.mark.parametrize("days", [-5000, -300, 300, 365 * 6])
def test_a_time_far_off_is_told_with_the_span(days: int) -> None:
    """Certificates and lists have their times; the span is that of the list in the pack."""
    members, given = claims._genuine()
    at = given.at + timedelta(days=days)
    said = span.warnings(Case(members, replace(given, at=at)))
    crl = packs.AMD.crl()
    assert crl.next_update_utc is not None
    assert (f"{at:%Y-%m-%dT%H:%M:%SZ} is outside of the times that the evidence bears, "
            f"{crl.last_update_utc:%Y-%m-%dT%H:%M:%SZ} to {crl.next_update_utc:%Y-%m-%dT%H:%M:%SZ}") in said[0]
    assert (days < 0) == any("before the log's last record" in each for each in said)


def test_a_log_alone_bears_its_own_times() -> None:
    """Without dated documents a log's records say which days it is of."""
    members, given = claims._genuine()
    alone = {name: content for name, content in members.items() if name.startswith("log/audit")}
    assert [] == span.warnings(Case(alone, given))
    for at, word in ((NOW - timedelta(days=30), "before the log's last record"),
                     (datetime(2099, 1, 1, tzinfo=UTC), "long after the log's last record")):
        assert [True] == [word in each for each in span.warnings(Case(alone, replace(given, at=at)))]


def test_verify_and_report_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In text, in JSON and on the page."""
    data, _ = judge.written(*claims._genuine())
    (tmp_path / "pack.zip").write_bytes(data)
    words = ["audit", "pack", "verify", str(tmp_path / "pack.zip"), *claims._papers().judging()[:-1], "2040-01-01"]
    main([*words, "--report", str(tmp_path / "own.html")])
    assert "warning: 2040-01-01T00:00:00Z is outside of the times" in capsys.readouterr().out
    assert "2040-01-01T00:00:00Z is outside of the times" in (tmp_path / "own.html").read_text()
    main([*words, "--json"])
    assert 1 == len(json.loads(capsys.readouterr().out)["warnings"])
