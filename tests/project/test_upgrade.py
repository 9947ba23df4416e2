"""The notes for an upgrade name each new field, and what the last release wrote is taken here."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/upgrade.md").read_text()
BEFORE = "v0.1.0"
TABLE = "appliance/policy/schema/schema_2.json"


@functools.cache
def _tagged(*names: str) -> bytes:
    done = subprocess.run(["git", "-C", ROOT, "archive", BEFORE, *names], capture_output=True, check=False)
    if done.returncode:  # a checkout need not have tags, so this never fails for one
        pytest.skip(f"the tag {BEFORE}: git fetch --tags")
    return done.stdout


def test_the_page_names_each_new_field() -> None:
    """By the tables of both releases; none has gone, and none has another form."""
    with tarfile.open(fileobj=io.BytesIO(_tagged(TABLE))) as archive:
        file = archive.extractfile(TABLE)
        assert file is not None
        before = json.load(file)
    now = json.loads((ROOT / TABLE).read_text())
    assert before == {path: now.get(path) for path in before}
    new = sorted(now.keys() - before.keys())
    assert new
    assert [] == [path for path in new if f"`{path.rpartition('.')[2]}`" not in PAGE and f"`{path}`" not in PAGE]


def test_policies_of_the_last_release_are_valid_and_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that it shipped, of both schemas."""
    with tarfile.open(fileobj=io.BytesIO(_tagged("policies", "examples"))) as archive:
        archive.extractall(tmp_path, filter="data")
    policies = sorted(tmp_path.rglob("*.hcl"))
    assert len(policies) > 4
    for path in policies:
        code = main(["check", str(path)])
        assert 0 == code, capsys.readouterr()
