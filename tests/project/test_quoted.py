"""What documents quote is there: policies that HashiCorp's parser takes and this version boots, verbs and options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.main import VERBS, main, parser_of
from appliance.policy.baselines import reading as baselines
from appliance.policy.enforcement import places
from appliance.policy.explaining.parser import parse_text
from appliance.policy.hcl.tree import Body
from tests.support import hcl_judge

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)


def _snippets() -> Iterator[tuple[str, str]]:
    """Each piece of HCL in the documents, and where it begins."""
    for path in DOCUMENTS:
        text = path.read_text()
        for found in FENCE.finditer(text):
            if found[1] in ("hcl", "terraform"):
                yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[2]


SNIPPETS = dict(_snippets())
POLICIES = {place: text for place, text in SNIPPETS.items() if re.search(r"^appliance \{", text, re.MULTILINE)}
BASELINES = {place for place, text in SNIPPETS.items() if re.search(r"^baseline \{", text, re.MULTILINE)}
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(
    [*ROOT.glob("examples/**/*.hcl"), *ROOT.glob("policies/*.hcl")])}


@pytest.fixture(scope="module")
def judge() -> Iterator[hcl_judge.Judge]:
    """HashiCorp's own parser."""
    made = hcl_judge.Judge()
    yield made
    made.close()


@pytest.mark.parametrize("place", SNIPPETS)
def test_hashicorp_takes_each_snippet(place: str, judge: hcl_judge.Judge) -> None:
    """Whoever pastes one into another tool gets no error, and nothing in it has to be computed."""
    said = judge.read(SNIPPETS[place])
    assert said.literal, said.error


def test_hashicorp_takes_our_baselines(judge: hcl_judge.Judge) -> None:
    """As it takes policies."""
    for path in sorted((ROOT / "policies/baselines").glob("*.hcl")):
        said = judge.read(path.read_text())
        assert said.literal, (path, said.error)


@pytest.mark.parametrize("place", [*POLICIES, *FILES])
def test_whole_policies_boot(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` says in its first line that this version boots it."""
    path = tmp_path / "deployment.hcl"
    path.write_text({**POLICIES, **FILES}[place])
    assert 0 == main(["check", str(path)])
    assert "this version boots it" in capsys.readouterr().out.splitlines()[0]


def test_the_readme_begins_with_a_whole_policy() -> None:
    """Its first piece of HCL is a file that can be checked."""
    assert next(place for place in SNIPPETS if place.startswith("README.md")) in POLICIES


def _fields(body: Body, around: tuple[str, ...]) -> Iterator[str]:
    """The attributes of a snippet, by the blocks around them."""
    yield from (".".join((*around, name)) for name in body.attributes)
    for block in body.blocks:
        yield from _fields(block.body, (*around, block.type))


@pytest.mark.parametrize("place", [place for place in SNIPPETS if place not in {*POLICIES, *BASELINES}])
def test_no_snippet_has_a_field_that_nobody_enforces(place: str) -> None:
    """Each field of a part of a policy is one of the language, and does something."""
    known = places()
    for field in _fields(parse_text(SNIPPETS[place]), ()):
        there = [each for each in known if each == field or each.endswith(f".{field}")]
        assert there, field
        assert any(known[each].enforced.values(each) != () for each in there), field


@pytest.mark.parametrize("place", sorted(BASELINES))
def test_whole_baselines_are_in_form(place: str, tmp_path: Path) -> None:
    """Beside those of ours, which they may include."""
    for path in (ROOT / "policies/baselines").glob("*.hcl"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "quoted.hcl").write_text(SNIPPETS[place])
    assert baselines.load(tmp_path / "quoted.hcl")[-1].rules


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a verb and of its actions."""
    found: set[str] = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        for each in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
            found |= _options(each)
    return found


def _commands() -> Iterator[tuple[str, str, str]]:
    """Each command of ours that a document quotes: the document, the verb and the rest of its line."""
    for path in DOCUMENTS:
        text = path.read_text()
        spans = [each.replace("\n", " ") for each in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
        lines = [line for found in FENCE.finditer(text) for line in found[2].replace("\\\n", " ").splitlines()]
        for span in spans + lines:
            for found in re.finditer(r"(?:^|[ /])appliance ([a-z][a-z-]*)(?= |$)([^|#;&]*)", span):
                if found[1] in VERBS:
                    yield str(path.relative_to(ROOT)), found[1], found[2]
        for span in spans:
            verb, _, rest = span.partition(" ")
            if verb in VERBS and " --" in span:
                yield str(path.relative_to(ROOT)), verb, rest


COMMANDS = sorted({(name, verb, option) for name, verb, rest in _commands()
                   for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest)})


def test_no_document_promises_an_option_that_is_not_there() -> None:
    """Every option that a document names behind a verb is one of that verb's."""
    assert len(COMMANDS) > 100
    known = {verb: _options(_sub(verb)) for verb in {verb for _, verb, _ in COMMANDS}}
    assert [] == [f"{name}: {verb} {option}" for name, verb, option in COMMANDS if option not in known[verb]]


def _sub(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb."""
    parsers = next(action for action in parser_of(verb)._actions if isinstance(action, argparse._SubParsersAction))
    made: argparse.ArgumentParser = parsers.choices[verb]
    return made
