"""No pattern goes back and forth over what a caller, a file of the operator's or a peer has written."""

from __future__ import annotations

import re
from collections.abc import Callable
from re import _constants as op
from re import _parser as parser
from typing import Any

import pytest

from appliance.policy.schema import identifiers
from appliance.text.calls.reading.marks import patterns as patterns_of
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from appliance.text.tokenizer.splitting import Splitter
from tests.project.worst_texts import ELSEWHERE, WORST
from tests.support import patterns
from tests.support.linear import grows_linearly

FOUND = {each.name: each for each in patterns.found()}


def _scan(pattern: re.Pattern[Any], text: Any) -> None:
    at = 0
    while at < len(text) and (match := pattern.match(text, at)) is not None and match.end() > at:
        at = match.end()


_USES: dict[str, Callable[[re.Pattern[Any], Any], object]] = {
    "match": re.Pattern.match, "fullmatch": re.Pattern.fullmatch, "search": re.Pattern.search, "scan": _scan,
    "all": lambda pattern, text: sum(1 for _ in pattern.finditer(text)),
}


def _repeats(pattern: re.Pattern[Any]) -> bool:
    """Whether it repeats anything without a bound."""
    waiting = [parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)]
    while waiting:
        for code, value in waiting.pop():
            if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
                if value[1] is op.MAXREPEAT:
                    return True
                waiting.append(value[2])
            elif code is op.BRANCH:
                waiting += value[1]
            elif code is op.SUBPATTERN:
                waiting.append(value[3])
            elif code in (op.ASSERT, op.ASSERT_NOT):
                waiting.append(value[1])
            elif code is op.ATOMIC_GROUP:
                waiting.append(value)
    return False


def test_each_pattern_that_repeats_has_its_worst_text() -> None:
    """One that is added needs a row; a row needs its pattern."""
    lacking = []
    for name, each in FOUND.items():
        if name in WORST or name in ELSEWHERE:
            continue
        try:
            if not _repeats(each.compiled()):
                continue
        except NameError:
            pass
        lacking.append(name)
    assert [] == lacking
    assert [] == sorted({*WORST, *ELSEWHERE} - FOUND.keys())


@pytest.mark.slow
def test_the_measure_finds_a_quadratic_pattern() -> None:
    """A search for what begins everywhere and never ends, and one that ends."""
    wrong, right = re.compile(r"a+b"), re.compile(r"a++c|a")
    assert not grows_linearly(wrong.search, lambda count: "a" * count)
    assert grows_linearly(right.search, lambda count: "a" * count)


@pytest.mark.parametrize("name", WORST)
def test_time_grows_with_the_text_alone(name: str) -> None:
    """No more than 2.2 times for a text twice as long."""
    try:
        pattern = FOUND[name].compiled()
    except NameError:  # a variable of a function in it
        pattern = re.compile(eval(compile(FOUND[name].written_text(), name, "eval"), {"architecture": "amd64"}),  # noqa: S307
                             re.MULTILINE)
    use, texts = WORST[name]

    def made(before: str, unit: str, after: str) -> Callable[[int], Any]:
        def text(count: int) -> Any:
            whole = before + unit * count + after
            return whole if isinstance(pattern.pattern, str) else whole.encode("latin-1")
        return text

    slow = [text for text in texts if not grows_linearly(lambda data: _USES[use](pattern, data), made(*text))]
    assert [] == slow


@pytest.mark.slow
@pytest.mark.parametrize("unit", [" ", "\n", "a", "A", "1", "'", "!", " a", "\u4e00", "\u0300", "'s", " \n", "1a"])
def test_every_pre_tokenizer_is_linear(unit: str) -> None:
    """They cut callers' texts: each over each kind of character, with another one at the end."""
    slow = []
    for name, pre in {pre: (name, pre) for name, pre in PRE_TOKENIZERS.items()}.values():
        split = Splitter(pre).split

        def use(text: str, split: Any = split) -> None:
            for _ in split(text):
                pass

        if not grows_linearly(use, lambda count: unit * count + "x"):
            slow.append(name)
    assert [] == slow


def test_marks_are_found_in_linear_time() -> None:
    """The marks of calls in an answer, in a text of their beginnings."""
    for marks in (("</tool_call>", "<tool_call>"), ("<|call|>", "<|end|>", "<|"), ("[/TOOL", "[")):
        for pattern in patterns_of(marks):
            for unit in (marks[0][:-1], marks[0][0], "a"):
                assert grows_linearly(lambda text, pattern=pattern: sum(1 for _ in pattern.finditer(text)),
                                      lambda count, unit=unit: unit * count)


def test_no_pattern_of_the_schema_repeats_without_a_bound() -> None:
    """Those of names, devices and fields in a policy; a DNS name has its bound before."""
    kinds = [each for each in vars(identifiers).values() if isinstance(each, identifiers.Matching)]
    assert len(kinds) > 5
    assert [identifiers.DNS_NAME.pattern] == [each.pattern for each in kinds if _repeats(re.compile(each.pattern))]
    assert identifiers.DNS_NAME.pattern.startswith("(?=.{1,253}$)")
