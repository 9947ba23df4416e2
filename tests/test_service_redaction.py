"""Redaction: streamed pieces add up to the redacted whole, and nothing that may be in a match leaves early."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.service.problems import RequestError
from appliance.service.redaction import Redactor, Rule, redact

EXPRESSIONS = [
    r"\d{3}-\d{2}-\d{4}", r"\d{3}(?:-\d{4})?", r"a.*z|b", r"a.*?b", r"(?i)ab+", r"\ba\w*\b", r"(?<=a)b+", r"(?<!a)b",
    r"ab(?=1)", r"ab(?!1)", r"b$", r"a|ab|abz", r"(a+)1\1", r"[^ ]+@[a-z]+", r"z\Z", r"a*", r"(?:a|b)*?1", r"^a",
    r"\$1", r"(?P<x>a)-(?P=x)", r"(?s)1.2",
]
TEXT = st.text(alphabet="ab1z2- @$\nA", max_size=40)


def _stream(rules: list[Rule], pieces: list[str]) -> str:
    redactor = Redactor(rules)
    return "".join([redactor.feed(piece) for piece in pieces] + [redactor.finish()])


@pytest.mark.parametrize("expression", EXPRESSIONS)
@settings(max_examples=60, deadline=None)
@given(text=TEXT, cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_cutting_gives_the_redacted_whole(expression: str, text: str, cuts: list[int]) -> None:
    """However an answer is cut into pieces, the redacted pieces join to what Python's own `re.sub` makes of it."""
    points = sorted({0, len(text), *[cut for cut in cuts if cut < len(text)]})
    pieces = [text[a:b] for a, b in zip(points, points[1:], strict=False)]
    expected = re.sub(expression, lambda match: "[x]" if match.group() else "", text)
    assert expected == _stream([Rule.compile("r", expression, "[x]")], pieces)
    assert expected == _stream([Rule.compile("r", expression, "[x]")], list(text))


CHAIN = [Rule.compile("one", r"\d+", "ab"), Rule.compile("two", r"ab-ab", "<both>")]


def test_rules_apply_in_order() -> None:
    """A later rule sees what an earlier one put in."""
    assert "x <both> y" == redact(CHAIN, "x 12-34 y")
    assert "x <both> y" == _stream(CHAIN, list("x 12-34 y"))


HELD_BACK = [  # expression, text so far, what may leave
    (r"\d{3}-\d{2}-\d{4}", "my number is 123-4", "my number is "),
    (r"\d{3}-\d{2}-\d{4}", "my number is 12 or", "my number is 12 or"),
    (r"\d{3}(?:-\d{4})?", "call 555-", "call "),
    (r"\d{3}(?:-\d{4})?", "call 555 now", "call [x] now"),
    (r"secret(?= word)", "anything at all", ""),
    (r"\w+@\w+", "write to ann@b", "write to "),
]


@pytest.mark.parametrize(("expression", "text", "leaves"), HELD_BACK)
def test_holds_back_what_may_still_match(expression: str, text: str, leaves: str) -> None:
    """Text leaves as soon as it is certain, and no sooner."""
    assert leaves == Redactor([Rule.compile("r", expression, "[x]")]).feed(text)


def test_replacement_is_literal() -> None:
    """A replacement is text, not a template."""
    assert r"\1\g<0>" == redact([Rule.compile("r", "(a)", r"\1\g<0>")], "a")


def test_out_of_time_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that runs out of time refuses the answer instead of letting it through."""
    monkeypatch.setattr("appliance.service.redaction.MATCH_SECONDS", 0.01)
    rule = Rule.compile("slow", r"(?:a|a|aa)+b", "x")
    with pytest.raises(RequestError) as caught:
        redact([rule], "a" * 5000)
    assert "redaction_failed" == caught.value.code
