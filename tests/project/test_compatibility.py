"""The table of formats says what the readers take: here by their constants, and of the last release by its tag."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/compatibility.md"
RELEASES = ("0.1.0", "0.2.0")
_NAME = re.compile(r"appliance/([a-z][a-z-]*)/v([0-9]+)")
# Names with a version that enter a hash, a signature or a derived key: whoever changes one breaks what is next to it.
LABELS = {"attestation-key", "audit-detail", "audit-outcome", "audit-period", "audit-record", "broker-challenges",
          "machine-list", "pages", "policy-approval", "policy-host-data", "policy-tenants", "receipt-opening", "root",
          "sbom", "serve", "session", "state", "state-successor", "tenant-list", "tpm-quote", "verity", "vhd"}
_PROBE = """
import importlib, json, sys
found = {}
for place in json.load(sys.stdin):
    module, _, name = place.rpartition(".")
    module = importlib.import_module(module)
    value = getattr(module, name, None) or getattr(module, name.removesuffix("S"))
    value = int(value[-1:]) if isinstance(value, bytes) else value
    found[place] = [value] if isinstance(value, int) else list(value)
print(json.dumps(found))
"""


def _rows() -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The versions that each release reads, by what stands in the code."""
    found = {}
    for cells in re.findall(r"^\|[^|]*\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE):
        assert cells[0] not in found
        found[cells[0]] = tuple(tuple(map(int, re.findall(r"[0-9]+", each))) for each in cells[1:])
    return found  # type: ignore[return-value]


ROWS = _rows()
CONSTANTS = [place for place in ROWS if "/" not in place]


def _named(root: Path) -> dict[str, set[int]]:
    """The versions of each name `appliance/NAME/vN` in the code below a folder."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in sorted([*root.glob("appliance/**/*.py"), *root.glob("examples/broker/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_bytes())):
            text = node.value if isinstance(node, ast.Constant) else ""
            text = text.decode("latin-1") if isinstance(text, bytes) else text
            for name, version in _NAME.findall(text) if isinstance(text, str) and len(text) < 80 else ():
                found[name].add(int(version))
    return found


def _constants(root: Path) -> dict[str, list[int]]:
    """The readers' constants, by the code in a folder."""
    done = subprocess.run([sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{_PROBE}"],
                          input=json.dumps(CONSTANTS), capture_output=True, text=True, check=True, cwd="/")
    return dict(json.loads(done.stdout))


@functools.cache
def _tagged() -> bytes:
    done = subprocess.run(["git", "-C", ROOT, "archive", f"v{RELEASES[0]}", "appliance", "examples/broker"],
                          capture_output=True, check=False)
    if done.returncode:  # a checkout need not have tags, so this never fails for one
        pytest.skip(f"the tag v{RELEASES[0]}: git fetch --tags")
    return done.stdout


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The code of a release; that of the next one is here."""
    if request.param == 1:
        return ROOT
    with tarfile.open(fileobj=io.BytesIO(_tagged())) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize(("tree", "column"), [(0, 0), (1, 1)], indirect=["tree"], ids=RELEASES)
def test_a_column_is_what_that_release_reads(tree: Path, column: int) -> None:
    """Neither more versions nor fewer, for each row."""
    told = {place: sorted(versions[column]) for place, versions in ROWS.items()}
    named = _named(tree)
    real = {place: sorted(named.get(place.removeprefix("appliance/"), ())) for place in ROWS if "/" in place}
    real |= {place: sorted(versions) for place, versions in _constants(tree).items()}
    assert real == told


def test_each_format_has_a_row() -> None:
    """A name with a version in the code is a row of the table, or a label."""
    names = _named(ROOT).keys()
    assert names - {place.removeprefix("appliance/") for place in ROWS} == LABELS


def test_a_later_release_reads_what_an_earlier_one_read() -> None:
    """No version leaves the table."""
    assert all(set(earlier) <= set(later) for earlier, later in ROWS.values())


def test_the_page_holds_no_digest() -> None:
    """One of schema 2 would be wrong with the next field: `appliance digest` says it."""
    assert [] == re.findall(r"\b(?=[a-f]*[0-9])[0-9a-f]{12,}", PAGE.read_text())


def test_the_table_is_of_this_version_or_the_next() -> None:
    """The last column is that of this tree."""
    from appliance import __version__

    assert __version__ in RELEASES[-2:]
