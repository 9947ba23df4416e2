"""The notes for an upgrade name each new field, and what the last release wrote is taken here."""

from __future__ import annotations

import functools
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance import platforms
from appliance.cli.main import main
from appliance.client.verdict import EXIT_CODES

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


def test_the_page_names_new_platforms_and_exit_codes() -> None:
    """By what the reference of the last release lacks."""
    with tarfile.open(fileobj=io.BytesIO(_tagged("docs/reference"))) as archive:
        policy, verify = (str(archive.extractfile(f"docs/reference/{each}.md").read(), "utf-8")  # type: ignore[union-attr]
                          for each in ("policy", "verify"))
    new = [each.name for each in platforms.PLATFORMS if f'"{each.name}"' not in policy]
    assert [] == [name for name in new if f'"{name}"' not in PAGE]
    codes = {code: status for status, code in EXIT_CODES.items() if f"| {code} | `{status}` |" not in verify}
    assert [4, 7] == sorted(codes)
    assert [] == [code for code, status in codes.items() if f"exit code: {code}, `{status}`" not in PAGE]


def test_the_page_names_each_newer_format() -> None:
    """Those that the last release knew, in a version that it does not read."""
    table = (ROOT / "docs/reference/compatibility.md").read_text()
    rows = re.findall(
        r"^\| \[?(.*?)(?:\]\(.*?\))?(?: in it|, chained)? \| `.*?` \| ([0-9, ]+) \| ([0-9, ]+) \|",
        table, re.MULTILINE)
    new = [(name, now.split(", ")[-1]) for name, before, now in rows if before != now]
    assert {("measurements", "2"), ("TPM evidence", "2")} <= set(new)
    assert [] == [each for each in new if not re.search(rf"{each[0]}(\]\(\S+\))? {each[1]} ", PAGE, re.IGNORECASE)]


def test_policies_of_the_last_release_are_valid_and_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that it shipped, of both schemas."""
    with tarfile.open(fileobj=io.BytesIO(_tagged("policies", "examples"))) as archive:
        archive.extractall(tmp_path, filter="data")
    policies = sorted(tmp_path.rglob("*.hcl"))
    assert len(policies) > 4
    for path in policies:
        code = main(["check", str(path)])
        assert 0 == code, capsys.readouterr()
