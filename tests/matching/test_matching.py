"""The automaton of redaction patterns: the same matches as Python's `re`, in a bounded number of operations."""

from __future__ import annotations

import functools
import random
import re
import threading
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import numpy as np
import pytest

from appliance.matching import Automaton, points, search
from appliance.matching.characters import POINTS, members
from appliance.policy.schema.kinds import Mismatch
from appliance.policy.schema.patterns import MAX_COST, bounds
from tests.support.engines import kernels
from tests.support.open_ended import undecided

FLAGS = ["", "", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?ai)", "(?ims)"]
PIECES = ["a", "b", "c", "[ab]", "[^a]", ".", r"\w", "ab", r"\d", r"\s", r"\W", "é", "[é-ü]", "(?i:k)", "ſ",
          "(?i:[i-s])", r"(?a:\w)", "(?s:.)", "(?-i:b)", r"[^\W\d]", "\\ud800", "Σ", "1"]
PLACES = [r"\b", r"\B", "^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)", r"(?a:\b)"]
ALPHABETS = ["ab", "abc", "abc1 \n_", "aabc1_ é\nAkſ\u212aİıẞΣς\ud800𝔸٣"]


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """A random pattern, often an ambiguous one, and not always of the subset."""
    kind = rng.randrange(11 if depth < 4 else 4)
    if kind < 3:
        return rng.choice(PIECES[:8] if rng.random() < 0.7 else PIECES)
    if kind == 3:
        return rng.choice(PLACES) if rng.random() < 0.4 else rng.choice("abc")
    if kind < 7:
        return "".join(random_pattern(rng, depth + 1) for _ in range(rng.randrange(1, 4)))
    if kind < 9:
        branches = [random_pattern(rng, depth + 1) if rng.random() < 0.93 else "" for _ in range(rng.randrange(2, 4))]
        return f"(?:{'|'.join(branches)})"
    low = rng.choice([0, 0, 1, 1, 2, 3, 5])
    lazy = "?" if rng.random() < 0.3 else ""
    return f"(?:{random_pattern(rng, depth + 1)}){{{low},{low + rng.choice([0, 0, 1, 1, 2, 3, 7, 12])}}}{lazy}"


def matches(automaton: Automaton, text: str, start: int = 0) -> list[tuple[int, int]]:
    """Start and end of all matches."""
    return [(first, end) for some in automaton.spans(points(text), start) for first, end in some.tolist()]


@pytest.mark.parametrize("seed", range(4))
def test_finds_what_re_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random patterns of the subset have the matches that Python's `re` finds, also where blocks of the text end."""
    rng, accepted = random.Random(seed), 0
    while accepted < 150:
        pattern = rng.choice(FLAGS) + random_pattern(rng)
        try:
            automaton = Automaton(pattern, kernels())
        except Mismatch:
            continue
        accepted, judge = accepted + 1, re.compile(pattern)
        for size in (5, 30, 60, 900):
            monkeypatch.setattr(search, "_CACHE", rng.choice([1, 1 << 19]))  # 1: blocks as short as may be
            text = "".join(rng.choices(rng.choice(ALPHABETS), k=size))
            start = rng.choice([0, 0, rng.randrange(size)])
            expected = [match.span() for match in judge.finditer(text, start)]
            assert expected == matches(automaton, text, start), (pattern, text)


def test_tells_what_text_to_come_may_change() -> None:
    """Of random patterns, the positions from which a path runs into the end of the text are told, and no others."""
    rng, accepted = random.Random(7), 0
    while accepted < 300:
        pattern = random_pattern(rng)
        if "$" in pattern or "(?a:" in pattern:  # which the judge reads less exactly
            continue
        try:
            automaton = Automaton(pattern, kernels())
        except Mismatch:
            continue
        accepted, judge = accepted + 1, undecided(pattern)
        text = "".join(rng.choices(rng.choice(ALPHABETS), k=40))
        expected = [place for place in range(len(text)) if judge.match(text, place)]
        assert expected == automaton.undecided(points(text), 0).tolist(), (pattern, text)


EDGES = [  # pattern, text
    (r"[ab]{1,78}[ab]{1,78}[cd]", "ab" * 500 + "c" + "a" * 90 + "d"), (r"[^\s]{1,4096}", "x" * 9000 + " " + "y" * 5000),
    ("(?:ab|c){1,2048}", "abc" * 4000), ("(?:ab|c){1000,2048}?", "abc" * 4000), ("a{4000}b", "a" * 9000 + "b"),
    ("(?:a|ab)(?:c|bcd)d?", "abcd" * 50), ("x[ab]{0,4000}?y|x", "xabxaby" * 2000), ("a$", "a\na\n"),
    ("(?m)^a$", "a\na"),
    ("|".join(f"{chr(0x4e00 + i)}{chr(0x4e01 + i)}" for i in range(300)), "".join(map(chr, range(0x4e00, 0x4f00)))),
    ("0?1?2?3?4?5?6?7?8?9?a?b?c?d?e?!", "0b!!5e!9a" * 300), ("(?i)straße|ſ", "STRASSE straße STRAẞE ss S"),
    ("a", "a" * 70_000), ("\ud800", "\ud800\udc00\ud800"), (r"\x00|\n", "\x00\n"),
]


@pytest.mark.parametrize(("pattern", "text"), EDGES)
def test_edges(pattern: str, text: str) -> None:
    """Long repeats, many alternatives, many classes and many matches are as `re` has them."""
    assert [match.span() for match in re.finditer(pattern, text)] == matches(Automaton(pattern, kernels()), text)


SETS = ["[a-z]", "k", "[^k]", r"\w", r"[\d_]", r"[^\W\d]", "ſ", "[İı]", "[à-ý]", "ß", "[Σς]", ".", r"[^\s]",
        "[𝔸-\U0001f600]"]


@functools.cache
def _everything() -> str:
    """All characters that there are, in order."""
    return "".join(map(chr, range(POINTS)))


@pytest.mark.parametrize("text", SETS)
@pytest.mark.parametrize("flags", [0, re.IGNORECASE, re.ASCII, re.IGNORECASE | re.ASCII, re.DOTALL])
def test_sets_hold_the_characters_of_re(text: str, flags: int) -> None:
    """Each set has, of all characters that there are, those that `re` finds in it."""
    ((code, value),) = parser.parse(text, flags)
    found = "".join(re.findall(f"(?:{text})+", _everything(), flags)).encode("utf-32-le", "surrogatepass")
    ranges = members(code, value, flags if flags & re.ASCII else flags | re.UNICODE)
    assert np.array_equal(np.frombuffer(found, np.uint32),
                          np.unique(np.concatenate([np.arange(first, end) for first, end in ranges])))
    assert code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)


def test_operations_are_bounded_by_the_cost_that_check_computes() -> None:
    """A block of text takes at most so many operations as `patterns.bounds` counts steps for one position, a few each,
    whatever the text: the time is linear in it."""
    rng, accepted = random.Random(11), 0
    worst = ["(?:ab|c){1,2048}", "(?:ab|cd|e){600,1200}", "a{1,4000}b", "(?:(?:ab|c){20}d){1,30}", "(?:ab?){1,10}c"]
    while accepted < 600:
        pattern = worst.pop() if worst else random_pattern(rng)
        try:
            cost = bounds(pattern).cost
        except Mismatch:
            continue
        accepted += 1
        assert Automaton(pattern, kernels()).work <= 8 * cost + 64 <= 8 * MAX_COST + 64, pattern


def test_a_search_lets_its_caller_in_between_slices() -> None:
    """A long text is searched in slices, after each of which its caller may end it."""
    automaton, calls = Automaton("ab", kernels()), list[int]()
    text = points("ab" * search.SLICE)
    assert search.SLICE == sum(len(some) for some in automaton.spans(text, 0, lambda: calls.append(1)))
    assert len(calls) >= 2

    def leave() -> None:
        raise TimeoutError
    with pytest.raises(TimeoutError):
        list(automaton.spans(points("c" * 10 * search.SLICE), 0, leave))


def test_threads_search_at_once() -> None:
    """Threads that search with the same automaton do not disturb each other."""
    automaton, texts = Automaton(r"(?:ab|c){1,40}|a", kernels()), ["abc" * 9000, "cab" * 700, "aacb" * 3000, "c" * 5000]
    expected, found = [matches(automaton, text) for text in texts], dict[int, list[list[tuple[int, int]]]]()
    threads = [threading.Thread(target=lambda n=n: found.update({n: [matches(automaton, texts[n]) for _ in range(20)]}))
               for n in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[spans] * 20 for spans in expected] == [found[n] for n in range(len(texts))]
