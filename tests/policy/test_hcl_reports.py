"""Texts of the kinds that people reported to parsers of HCL: read as HashiCorp's own parser reads them, or listed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.policy.hcl.diagnostics import InvalidPolicyError, SourceText, Span
from appliance.policy.hcl.parser import MAX_BYTES, decode, parse
from appliance.policy.hcl.reading import MAX_DEPTH
from appliance.policy.hcl.tokens import MAX_DIGITS, MAX_TOKENS
from appliance.policy.hcl.tree import Body
from tests.support import hcl_judge
from tests.support.hcl_reports import LISTED, REPORTS

PAGE = Path(__file__).parents[2] / "docs/supply-chain.md"
KINDS = [(kind, text) for kind, texts in REPORTS.items() for text in texts]


@pytest.fixture(scope="module")
def judge() -> Iterator[hcl_judge.Judge]:
    """HashiCorp's own parser."""
    made = hcl_judge.Judge()
    yield made
    made.close()


def read(text: str) -> tuple[Body, bool]:
    """Read a file of this text as a policy's is read; the tree, and whether it was not refused."""
    decoded, problem, _ = decode(text.encode())
    try:
        return parse(SourceText(decoded, "t.hcl")), problem is None
    except InvalidPolicyError:
        return Body(Span(0, 0)), False


def alike(text: str, judge: hcl_judge.Judge) -> bool:
    """Whether a text has the value that HashiCorp's parser gives, or is refused where that refuses or computes."""
    said = judge.read(text)
    body, accepted = read(text)
    if not said.literal or not accepted:
        return said.literal == accepted
    return hcl_judge.same(hcl_judge.whole(body, composed=False), said.body)


def test_there_are_enough() -> None:
    """No text stands twice, and none of those that differ is counted."""
    texts = [text for _, text in KINDS]
    assert len(texts) == len({*texts, *LISTED}) - len(LISTED)
    assert len(texts) >= 145


@pytest.mark.parametrize(("kind", "text"), KINDS, ids=lambda value: value if value in REPORTS else "")
def test_a_reported_kind_is_read_as_hashicorp_reads_it(kind: str, text: str, judge: hcl_judge.Judge) -> None:
    """The same value to the character, or refused by both."""
    assert alike(text, judge), (kind, text, judge.read(text))


@pytest.mark.parametrize("text", LISTED, ids=lambda text: LISTED[text])
def test_what_differs_is_listed(text: str, judge: hcl_judge.Judge) -> None:
    """A listed text does differ, and the page has its row."""
    assert not alike(text, judge)
    assert LISTED[text] in rows()


def rows() -> dict[str, str]:
    """The rows of the page's table of differences: what differs, and why."""
    table = PAGE.read_text().partition("<!-- differences: begin -->")[2].partition("<!-- differences: end -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
             if line.startswith("| ") and not line.startswith("| what |")]
    return {row[0].strip(" |"): row[-1].strip(" |") for row in cells}


def test_each_row_has_a_text_and_a_reason() -> None:
    """What the page lists, a text shows, but for bounds, which are those of the program, and for rare letters."""
    listed = rows()
    assert all(len(reason) > 10 for reason in listed.values()), listed
    assert set(listed) == {*LISTED.values(), "large files", "rare letters in a heredoc's marker"}
    page = re.sub(r"[ ,]", "", PAGE.read_text())
    for bound in (f"{MAX_TOKENS}words", f"{MAX_DEPTH}levels", f"{MAX_BYTES >> 20}MiB", f"{MAX_DIGITS}characters"):
        assert bound in page


def test_rare_letters(judge: hcl_judge.Judge) -> None:
    """Greek's iota subscript begins a name by ID_Start, and not by XID_Start."""
    assert not alike("a = <<\u037a\nx\n\u037a\n", judge)
