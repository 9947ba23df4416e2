"""The commands of the guides are ones that the command line takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.cli.main import main, parser_of
from appliance.errors import ApplianceError
from appliance.policy import load, unenforced
from tests.support.pages import ROOT, Line, lines

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
COMMANDS = [(line, words[1:]) for page in PAGES for line in lines(page) for words in line.commands()
            if words[0] in ("appliance", ".venv/bin/appliance")]


HEX = {"NONCE": "ab" * 32, "POLICY": "ab" * 48, "DIGEST": "ab" * 32}
SAMPLES = {**HEX, **{f"${name}": value for name, value in HEX.items()},  # for what a reader puts in
           "$PROXY": "127.0.0.1:9000", "$AT": "2026-11-20T07:00:00Z"}


def _id(value: object) -> str:
    return f"{value.page.relative_to(ROOT)}:{value.number}" if isinstance(value, Line) else ""


@pytest.mark.parametrize(("line", "words"), COMMANDS, ids=_id)
def test_a_command_of_a_page_is_one_that_is_taken(line: Line, words: list[str]) -> None:
    """Verb, options and values are known, and none that is needed is absent. Where a page leaves words out (`…`), what
    stands there is known."""
    shown = [SAMPLES.get(word, word) for word in words if word not in ("…", "...")]
    try:
        _, wrong = parser_of(shown[0]).parse_known_args(shown)
    except ApplianceError as error:
        wrong = [] if len(shown) < len(words) and "required" in error.summary else [error.summary]
    assert [] == wrong, line.text


@pytest.mark.parametrize("name", ["sev-snp", "tdx"])
def test_the_policy_of_a_machines_guide(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step 1, to the letter: the example with the page's block in place of its `tee` is valid, and this version carries
    all of it out."""
    page = (ROOT / f"docs/guides/{name}.md").read_text()
    block = re.search(r"^```hcl\n(tee \{.*?^\}\n)", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    example = (ROOT / "examples/vm/deployment.hcl").read_text()
    text, count = re.subn(r"^tee \{.*?^\}\n", lambda _: block[1], example, flags=re.MULTILINE | re.DOTALL)
    assert 1 == count
    (tmp_path / "deployment.hcl").write_text(text)
    assert 0 == main(["check", str(tmp_path / "deployment.hcl")]), capsys.readouterr()
    policy = load(tmp_path / "deployment.hcl").policy
    assert ((name,), []) == (policy.tee.platforms, unenforced(policy))


def test_pages_are_read() -> None:
    """The reader joins lines, drops comments and redirections, and finds what stands behind a pipe."""
    line = Line(Path("x"), 1, "a --b 'c d' && e f > out | g h   # not this")
    assert [["a", "--b", "c d"], ["e", "f"], ["g", "h"]] == list(line.commands())
    assert len(COMMANDS) > 60
