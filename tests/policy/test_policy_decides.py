"""What ships decides as the desk does, and says why at the first mistake."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.policy import InvalidPolicyError, load, policy_digest
from appliance.policy.explaining import parser as explaining
from appliance.policy.explaining.checking import check
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import SourceText
from appliance.policy.hcl.tree import Body
from tests.support.hcl_reports import LISTED, REPORTS
from tests.support.policies import BASE, in_schema, with_lines

TEXTS = [*LISTED, *(text for texts in REPORTS.values() for text in texts)]


def refused(text: str, folder: Path) -> InvalidPolicyError | None:
    """The refusal of a policy as a guest gives it, or None."""
    path = folder / "policy.hcl"
    path.write_text(text)
    try:
        load(path)
    except InvalidPolicyError as error:
        return error
    return None


def decided(text: str) -> Body | None:
    """The tree that ships, or None where the text is refused."""
    try:
        return parser.parse(SourceText(text, "t.hcl"))
    except InvalidPolicyError:
        return None


def explained(text: str) -> Body | None:
    """The tree of the desk's own reading, or None where it finds a mistake."""
    report = FullReport(SourceText(text, "t.hcl"))
    body = explaining.parse(report)
    return None if report.failed else body


def test_both_readings_agree_on_reported_texts() -> None:
    """A text is in form for both or for neither, and then both have one tree."""
    assert [] == [text for text in TEXTS if decided(text) != explained(text)]


@pytest.mark.parametrize("mark", ["", "}", "=", '"', "(", "é", "\n"])
def test_both_readings_agree_on_broken_policies(mark: str) -> None:
    """Wherever a policy loses a character, or has another one in its place."""
    text = in_schema(2, with_lines("limits", "queued_requests = 3 # few\n"))
    places = range(0, len(text), 7)
    changed = [text[:at] + mark + text[at + 1:] for at in places]
    assert [] == [each for each in changed if decided(each) != explained(each)]


WRONG = {
    "a name twice": (with_lines("limits", "prompt_tokens = 1\nprompt_tokens = 2"), "prompt_tokens is set twice",
                     "each attribute once"),
    "no value": (BASE.replace("port = 8080", "port ="), "the end of the line cannot stand here", "a number"),
    "an expression": (BASE.replace("8080", "8000 + 80"), "this is an expression, which has to be computed",
                      "a policy is data"),
    "an open brace": (BASE.rstrip().removesuffix("}"), "the end of the file cannot stand here", "}"),
    "a stray key": (with_lines("limits", "promt_tokens = 1"), "promt_tokens is not known in limits", "prompt_tokens"),
    "a choice": (BASE.replace('"simulated"', '"simulate"'),
                 'is "simulate", which is not one of the choices', "sev-snp"),
    "a rule": (BASE.replace('"tcp"', '"vsock"').replace("port = 8080", 'path = "/x"'),
               'a listener of kind "vsock" needs port', ""),
    "a missing block": (BASE.replace("tee {\n  platforms = [\"simulated\"]\n}\n", ""), "tee is missing", "a block")}


@pytest.mark.parametrize("name", WRONG)
def test_a_guest_says_the_first_mistake(name: str, tmp_path: Path) -> None:
    """With line and column, what was found and what is allowed; the desk refuses the same text."""
    text, summary, allowed = WRONG[name]
    error = refused(text, tmp_path)
    assert error is not None
    (found,) = error.diagnostics
    assert summary in found.summary
    assert allowed in found.detail
    assert f"policy.hcl:{found.line}:{found.column}: error[{found.code}]: " in str(error)
    assert 1 <= found.line <= text.count("\n") + 1
    assert not check(text).valid


def test_a_guest_reads_what_the_desk_reads(tmp_path: Path) -> None:
    """The same policy to its digest, whatever deserves a warning."""
    text = with_lines("tee", "evidence {\n  sev_snp {\n    min_guest_svn = 2\n  }\n}")
    checked = check(text)
    assert checked.policy is not None
    assert any(each.severity == "warning" for each in checked.diagnostics)
    assert refused(text, tmp_path) is None
    assert policy_digest(checked.policy) == load(tmp_path / "policy.hcl").digest


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("form", [
    bytes.hex, lambda key: base64.b64encode(key).decode(), lambda key: base64.b64encode(key).decode().rstrip("="),
    lambda key: f"sk-{key.hex()}"], ids=["hex", "base64", "unpadded", "API key"])
def test_a_key_in_place_of_a_policy_is_not_repeated(form: Callable[[bytes], str], seed: int, tmp_path: Path) -> None:
    """Nobody's console or journal gets more than three characters of it, alone in the file or with a line end."""
    key = form(random.Random(seed).randbytes(32))
    for text in (key, f"{key}\n", f"{key} = 1\n{{", f"a = {key}\n"):
        error = refused(text, tmp_path)
        assert error is not None
        said = str(error) + str([each.as_json() for each in error.diagnostics])
        assert [] == [key[at:at + 4] for at in range(len(key) - 3) if key[at:at + 4] in said.replace(str(tmp_path), "")]


def test_a_comment_makes_no_file_of_another_kind(tmp_path: Path) -> None:
    """What only explains does not decide: the desk takes a policy that a guest takes."""
    text = "### TFL3\n" + BASE
    assert refused(text, tmp_path) is None
    assert check(text).policy is not None
