"""Redaction patterns: what is accepted is fast on every input, and as wide as it says."""

from __future__ import annotations

import random
import re
import time

import pytest

from appliance.policy.schema.kinds import Mismatch
from appliance.policy.schema.patterns import MAX_COST, MAX_WIDTH, bounds, width
from tests.support import pace

ACCEPTED = [  # pattern, shortest and longest match
    (r"\b\d{3}-\d{2}-\d{4}\b", 11, 11), (r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,200}\.[A-Za-z]{2,24}", 6, 290),
    (r"(?:\d{4}[ -]?){3}\d{4}", 16, 19), ("a|bc|def", 1, 3), (r"(?i)secret", 6, 6), (r"sk-[\w-]{20,64}", 23, 67),
    (r"^x.{0,20}$", 1, 21), (r"(foo|bar){1,50}", 3, 150), (r"[^\s]{1,4096}", 1, MAX_WIDTH), ("a?b", 1, 2),
    (r"(a(b(c){2}){2}){2}", 14, 14), (r"(?P<n>x)y", 2, 2), ("é{2}", 2, 2), ("a{2}?", 2, 2), ("(?:a?)?b", 1, 2),
    (r"\w{1,50}\d{1,50}", 2, 100),
]
REFUSED = [  # pattern, words of the refusal
    ("a+", "without an upper bound"), ("a*b", "without an upper bound"), ("ba{2,}", "without an upper bound"),
    ("(a+)+", "without an upper bound"), ("(?=a)b", "look-around"), ("(?<!a)b", "look-around"),
    (r"(a)\1", "back-reference"), (r"(?P<x>a)(?P=x)", "back-reference"), ("(a)(?(1)b|c)", "condition"),
    ("(?>ab)c", "not in the subset"), ("a{0,5}", "empty text"), ("a?", "empty text"), ("|a", "empty text"),
    ("", "0 characters"), ("a" * 1025, "1025 characters"), ("a{4097}", "4097 characters"),
    ("a{65}b{4090}", "4155 characters"), ("(a{70}){70}", "4900 characters"), ("[a", "no regular expression"),
    ("[[a]", "in a set"), ("[a||b]c", "in a set"),
    ("a{1,2", None), ("(", "no regular expression"), (r"\d{3", None), ("(?x)a b", "flag"), ("(?L)a", "expression"),
    ("((a{1,10}){1,10}){1,10}b", "steps"), ("a{1,100}a{1,100}a{1,100}b", "steps"), ("(a|a){1,20}b", "steps"),
    ("(a|aa){1,20}b", "steps"), ("(a|b|ab){20}c", "steps"), ("(?:x?){5}y", "may be empty"),
    ("(" * 65 + "a" + ")" * 65, "64 groups"), (r"\Z" * 3, "empty text"), ("a{1,99999999999}", "no regular expression"),
]


@pytest.mark.parametrize(("pattern", "low", "high"), ACCEPTED)
def test_accepted(pattern: str, low: int, high: int) -> None:
    """A pattern of the subset is accepted, with the lengths of its matches."""
    found = bounds(pattern)
    assert (low, high) == (found.low, found.high)
    assert high == width(pattern)
    assert found.cost <= MAX_COST


@pytest.mark.parametrize(("pattern", "words"), REFUSED)
def test_refused(pattern: str, words: str | None) -> None:
    """A pattern outside of the subset is refused, with what to write instead."""
    if words is None:
        bounds(pattern)  # re takes an unfinished repeat as plain text, and so do we
        return
    with pytest.raises(Mismatch) as caught:
        bounds(pattern)
    assert words in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("pattern", [entry[0] for entry in ACCEPTED])
def test_accepted_patterns_are_fast(pattern: str) -> None:
    """On hostile text of 20,000 characters, each accepted pattern is done within a second."""
    compiled = re.compile(pattern)
    for text in ("a" * 20_000, "1" * 20_000, "a.a" * 6_000 + "@" + "a.a" * 600, "foobar" * 3000 + "x", "x" * 20_000):
        start = time.process_time()
        compiled.sub("", text)
        assert pace.within(time.process_time() - start, 1.5)


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """Return a random pattern over a, b and c, often an ambiguous one."""
    kind = rng.randrange(8 if depth < 3 else 3)
    if kind < 3:
        return rng.choice(["a", "b", "c", "[ab]", "[^a]", ".", r"\w", r"\b"])
    if kind < 5:
        return "".join(random_pattern(rng, depth + 1) for _ in range(rng.randrange(1, 4)))
    if kind == 5:
        return "(?:" + "|".join(random_pattern(rng, depth + 1) for _ in range(2)) + ")"
    low = rng.randrange(3)
    return f"(?:{random_pattern(rng, depth + 1)}){{{low},{low + rng.randrange(1, 12)}}}"


def steps(pattern: str, text: str) -> float:
    """Return the processor's seconds that one failing search takes, for a comparison only."""
    start = time.process_time()
    re.search(f"(?:{pattern})Z", text)
    return time.process_time() - start


def test_bounds_hold_for_random_patterns() -> None:
    """No match of an accepted random pattern is longer or shorter than its bounds, and none takes long."""
    rng = random.Random(5)
    accepted = 0
    for _ in range(3000):
        pattern = random_pattern(rng)
        try:
            found = bounds(pattern)
        except Mismatch:
            continue
        accepted += 1
        text = "".join(rng.choice("aabc") for _ in range(60))
        for match in re.finditer(pattern, text):
            assert found.low <= len(match[0]) <= found.high, pattern
        if accepted % 10 == 0:
            assert steps(pattern, "a" * 200) < 0.5, pattern
    assert accepted > 500
