"""`appliance explain`: each field and each code is explained, by tables that the sources are held against."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from appliance.api.problems import PROBLEMS
from appliance.cli.main import main
from appliance.manual import codes, fields, forms
from appliance.policy.explaining.checking import check
from appliance.policy.schema import frozen

ROOT = Path(__file__).parents[2]
# Codes of lines on standard error and of proxies, and classes that never leave the program under their own code.
MORE = {"key-denied", "key-absent", "environment-proxy", "connection-lost", "wrong-host"}


def _written() -> set[str]:
    """The codes that stand in the sources as `code="…"`, and as the `code` of a class or of a parameter."""
    found = set[str]()
    trees = [ast.parse(path.read_bytes()) for folder in ("appliance", "examples/broker")
             for path in (ROOT / folder).rglob("*.py")]
    for node in (each for tree in trees for each in ast.walk(tree)):
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") != "log":  # a field of the broker's log
            values = [each.value for each in node.keywords if each.arg == "code"]
        elif isinstance(node, ast.ClassDef):
            values = [line.value for line in node.body if isinstance(line, ast.Assign)
                      and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "code"]
        elif isinstance(node, ast.arguments):
            with_defaults = [*zip(reversed(node.args), reversed(node.defaults), strict=False),
                             *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
            values = [default for argument, default in with_defaults if argument.arg == "code"]
        found |= {each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


@pytest.mark.slow
def test_each_code_of_the_sources_is_explained() -> None:
    """And each row has a code that is somewhere in the sources."""
    known = codes.entries()
    assert set() == _written() - set(known)
    text = "\n".join(path.read_text() for folder in ("appliance", "examples/broker")
                     for path in (ROOT / folder).rglob("*.py"))
    assert [] == [code for code in known if f'"{code}"' not in text]
    assert set(PROBLEMS) | MORE <= set(known)


def test_what_a_row_says_is_short_and_whole() -> None:
    """Three texts in each; commands in them are verbs of ours, and pages are there."""
    from appliance.cli.main import VERBS

    for each in codes.entries().values():
        for text in (each.means, each.why, each.fix):
            assert 8 <= len(text) <= 200, each
        for verb in re.findall(r"(?:^|[:;,] |then )appliance ([a-z-]+)", each.fix):
            assert verb in VERBS, each
        for page in re.findall(r"\b(?:docs|examples)/[\w/.-]+\.md", each.fix):
            assert (ROOT / page).is_file(), page


@pytest.mark.slow
def test_forms_and_page_are_as_the_sources_have_them() -> None:
    """`make reference` writes both."""
    stored = json.loads((ROOT / "appliance/manual/forms.json").read_text())
    assert stored == {code: [list(each) for each in found] for code, found in forms.known().items()}
    assert (ROOT / "docs/reference/errors.md").read_text() == codes.page()
    assert ["TPM: PCR … are not what the key was sealed to"] == [each[0] for each in stored["tpm-pcrs"]][:1]


def test_each_field_is_explained() -> None:
    """All paths of the frozen table; a field's example is a policy's text but for required fields around it."""
    assert set(frozen.table(2)) == {*fields.entries()}
    for each in fields.entries().values():
        assert each.means, each.path
        if "…" not in each.example():
            found = {finding.code for finding in check(each.example()).diagnostics}
            assert not found & {"unknown-key", "syntax", "wrong-shape", "label"}, each.example()


@pytest.mark.parametrize(("name", "path"), [
    ("tee.evidence.debug", "tee.evidence.debug"), ("model.demo.key.provider", "model.key.provider"),
    ("first_token", "privacy.timing_padding.first_token"), ("tee", "tee")])
def test_a_field_by_its_path_or_its_end(name: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With labels or without."""
    assert 0 == main(["explain", name, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [path] == [each["path"] for each in told["fields"]]
    assert 0 == main(["explain", name])
    assert capsys.readouterr().out.startswith(f"{path}\n")


def test_a_code_with_its_messages(capsys: pytest.CaptureFixture[str]) -> None:
    """What, why and what to do, then what the program says with it; rules of verifiers too."""
    assert 0 == main(["explain", "tenants-signature"])
    said = capsys.readouterr().out
    assert "appliance tenants list.json --key authority.pem" in said
    assert "not signed by …" in said
    assert 0 == main(["explain", "evidence-measurement", "--json"])
    assert "`measurement`" in json.loads(capsys.readouterr().out)["code"]["means"]


def test_a_name_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest ones are named."""
    assert 2 == main(["explain", "tpm-pcr"])
    assert "tpm-pcrs" in capsys.readouterr().err
    assert 0 == main(["explain"])
    listed = capsys.readouterr().out
    assert all(f"  {code}" in listed for code in codes.entries())


def test_an_error_ends_in_the_command_that_explains_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That command works."""
    assert 2 == main(["check", str(tmp_path / "none.hcl")])
    more = re.search(r"^  more: appliance (explain .*)$", capsys.readouterr().err, re.MULTILINE)
    assert more is not None
    assert 0 == main(more[1].split())
    assert "policy-unreadable" in capsys.readouterr().out
