"""The command line takes every command that a page shows: its verbs, its options, and the form of their values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from appliance.cli.main import _UsageError, parser_of
from tests.support import shell_pages

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
VALUES = {  # what stands on a page for a reader's own value, where not any text will do
    "NONCE": "ab" * 32, "$NONCE": "ab" * 32, "$AT": "2026-11-20T12:00:00Z", "$POLICY": "ab" * 48, "POLICY": "ab" * 48,
    "$PROXY": "127.0.0.1:9000", "N": "7"}
LEFT = ("…", "...")  # arguments that a page leaves out
_END = re.compile(r"\s(?:#|[|&;<>]|[0-9]>).*$", re.DOTALL)
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*appliance (?=[a-z])")


def _shown(page: Path) -> list[str]:
    """The commands of the appliance on a page, on one line each."""
    found = []
    for command in shell_pages.commands(page):
        line = command.replace("\\\n", " ").strip()
        if (begun := _COMMAND.match(line)) is not None:
            found.append(_END.sub("", line[begun.end():]))
    return found


COMMANDS = [(str(page.relative_to(ROOT)), command) for page in PAGES for command in _shown(page)]


def _refused(words: list[str]) -> str:
    """Why the command line does not take these words; empty where it does."""
    try:
        args, unknown = parser_of(words[0]).parse_known_args(words)
    except _UsageError as error:
        return error.summary
    return " ".join(unknown) if words[0] == args.verb else f"it is {args.verb}"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(
    COMMANDS)])
def test_a_command_of_a_page_is_taken(page: str, command: str) -> None:
    """None is refused for its words, but for arguments that the page leaves out."""
    words = [VALUES.get(word, word) for word in shlex.split(command)]
    given = [word for word in words if word not in LEFT]
    said = _refused(given)
    assert "" == said or (given != words and "required" in said), f"{page}: {command}"


def test_pages_show_commands() -> None:
    """Of most verbs."""
    assert len(COMMANDS) > 60
    assert {"verify", "connect", "audit", "receipt", "image", "model"} <= {
        command.split()[0] for _, command in COMMANDS}
