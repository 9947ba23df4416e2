"""Each drill is run: after it, what its guide says refuses. A drill that finds nothing to refuse says so."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.drills.table import DRILLS
from tests.client.test_client_verify import AMD, _files
from tests.support import fake_appliance as fake
from tests.support.expected import ROOT

GIVEN = {"leaked-api-key", "tcb-recall"}  # drills that need files


def _drill(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a drill, and its outcome."""
    done = subprocess.run([sys.executable, "-m", "appliance", "drill", *words], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(DRILLS.keys() - GIVEN))
def test_what_should_refuse_refuses(name: str) -> None:
    """Each step ends as its guide says; the guide is there, and names the drill."""
    code, told = _drill(name, "--json")
    assert (0, True, None) == (code, told["held"], told["reason"])
    assert f"appliance drill {name}" in (ROOT / told["guide"]).read_text()


def test_a_leaked_api_key(tiny_model: Path) -> None:
    """The running appliance answers the leaked key with 401 after the push, and takes no older list."""
    code, told = _drill("leaked-api-key", "--json", "--model", str(tiny_model))
    assert (0, None) == (code, told["reason"])
    assert ["tenants", "push"] in [each[:2] for each in told["commands"]]


@pytest.fixture
def recalled(tmp_path: Path) -> list[str]:
    """The words for a machine with SEV-SNP whose evidence is kept."""
    with fake.snp(tmp_path, AMD) as running:
        words = _files(tmp_path, running)
        data = running[0].attestor.attest(bytes(32)).to_json()
    (tmp_path / "evidence.json").write_bytes(data)
    at = words.index("--policy")
    return ["--policy", words[at + 1], "--evidence", str(tmp_path / "evidence.json"), "--json",
            f"--verify={shlex.join([*words[:at], *words[at + 2:]])}"]


def test_a_recall(recalled: list[str]) -> None:
    """A machine that is verified is refused under the raised floor."""
    code, told = _drill("tcb-recall", *recalled)
    assert (0, None) == (code, told["reason"])


def test_a_machine_that_was_not_good_before(recalled: list[str]) -> None:
    """A rehearsal that does not begin with a good verdict proves nothing, and says so."""
    today = recalled[-1].partition(" --at ")[0]  # when its certificates are out of time
    code, told = _drill("tcb-recall", *recalled[:-1], today)
    assert (1, False) == (code, told["held"])


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_what_a_drill_needs(name: str) -> None:
    """The error names the option."""
    code, told = _drill(name, "--json")
    assert (2, "drill-needs") == (code, told["code"])
    assert told["hint"].startswith("give it: --")


def test_the_table_and_its_page() -> None:
    """Each drill has a row on the page of incidents, and each of its guides has both halves."""
    page = (ROOT / "docs/guides/incidents.md").read_text()
    assert sorted(DRILLS) == sorted(re.findall(r"\]\(incidents/([a-z-]+)\.md\)", page))
    for name, each in DRILLS.items():
        text = (ROOT / each.guide(name)).read_text()
        assert "**Rehearse it" in text
        assert "it refuses" in text
