"""Redaction patterns: a subset of regular expressions in which no input is slow.

A pattern is run over text that a stranger chose, by an automaton (`matching`). A pattern is
accepted only where two bounds can be computed from it alone:

- `width`: the longest text that it matches (this is also how much of a streamed answer must be held
  back);
- `cost`: an upper bound on the steps that one start position would take a backtracking engine, at
  most `MAX_COST`. The operations of the automaton are a few for each of these steps, on 64
  positions at once.

Repeats must have an upper bound, and there are no look-around and no back-references. A part
multiplies the cost of what follows by the number of ways in which it can match. One case is
cheaper: each way ends elsewhere, and what follows can never begin with a character that the part
holds. Then the first step after a shorter way fails, and the ways only add. The stdlib's own parser
(`re._parser`) reads the pattern, so that what is judged is what runs.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from appliance.policy.schema.kinds import Kind, Mismatch, expect

MAX_LENGTH = 1024  # characters of a pattern
MAX_WIDTH = 4096  # characters that one match may span
MAX_COST = 20_000  # steps for one start position
_OTHER = 128  # stands for every character outside of ASCII

Chars = frozenset[int]
_ALL: Chars = frozenset(range(_OTHER + 1))


@dataclass(frozen=True)
class MatchBounds:
    """The facts about a part of a pattern."""

    low: int  # the shortest match, in characters
    high: int  # the longest match
    ways: int  # in how many ways it can match at one position, at most
    distinct: bool  # whether no two of these ways end at the same place
    cost: int  # steps to try all of them, at most
    first: Chars  # characters that a match may begin with
    chars: Chars  # characters that a match may hold


_EMPTY = MatchBounds(0, 0, 1, True, 1, frozenset(), frozenset())
_CAP = 10**12  # beyond every limit: keeps the numbers small


def bounds(regex: str) -> MatchBounds:
    """Return the bounds of a pattern; raise `Mismatch` for one outside of the subset."""
    if not regex or len(regex) > MAX_LENGTH:
        raise Mismatch(f"has {len(regex)} characters", f"write 1 to {MAX_LENGTH} characters")
    if regex.count("(") > 64:
        raise Mismatch("has more than 64 groups", "split it into several patterns")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            tree = parser.parse(regex)
    except FutureWarning:
        raise Mismatch("has [, --, &&, ~~ or || in a set, which later versions of Python may read otherwise",
                      "put two backslashes before it") from None
    except (re.error, OverflowError, RecursionError) as error:
        raise Mismatch(f"is no regular expression: {getattr(error, 'msg', 'too large')}",
                      "mind that HCL takes one level of backslashes: write \\\\d for a digit") from None
    if tree.state.flags & ~(re.UNICODE | re.IGNORECASE | re.ASCII | re.MULTILINE | re.DOTALL):
        raise Mismatch("sets a flag that is not allowed", "only (?i), (?a), (?m) and (?s) are")
    found = _sequence(list(tree))
    if found.low == 0:
        raise Mismatch("matches the empty text", "make at least one character of it necessary")
    if found.high > MAX_WIDTH:
        raise Mismatch(f"matches up to {found.high} characters", f"bound it to {MAX_WIDTH}")
    if found.cost > MAX_COST:
        raise Mismatch(f"can take {found.cost} steps at each position, more than {MAX_COST}",
                      "shorten the bounds of repeats, or let what follows a repeat begin with a character that the "
                      "repeat does not take")
    return found


def width(regex: str) -> int:
    """Return the most characters that a match of an accepted pattern can span."""
    return bounds(regex).high


def ways(nodes: Sequence[Any]) -> int:
    """Return in how many ways a part of an accepted pattern's parse tree can match at one position,
    at most."""
    return _sequence(list(nodes)).ways


def _sequence(items: Sequence[Any]) -> MatchBounds:
    """Bound items in a row, from the last to the first, as the cost of each depends on what
    follows."""
    total = _EMPTY
    for item in reversed(items):
        total = _then(_item(item), total)
    return total


def _then(part: MatchBounds, rest: MatchBounds) -> MatchBounds:
    """Bound one part and what follows it."""
    if part.distinct and rest.low > 0 and not part.chars & rest.first:
        cost = part.cost + part.ways + rest.cost  # a shorter way ends before a character that `rest` cannot take
    else:
        cost = part.cost + part.ways * rest.cost
    return MatchBounds(
        part.low + rest.low, part.high + rest.high, min(_CAP, part.ways * rest.ways),
        (part.ways == 1 and rest.distinct) or (rest.ways == 1 and rest.low == rest.high and part.distinct),
        min(_CAP, cost), part.first | (rest.first if part.low == 0 else frozenset()), part.chars | rest.chars)


def _item(item: tuple[Any, Any]) -> MatchBounds:
    """Bound one node of the parse tree."""
    code, value = item
    if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        chars = _characters(code, value)
        return MatchBounds(1, 1, 1, True, 1, chars, chars)
    if code is op.AT:
        return MatchBounds(0, 0, 1, True, 2, frozenset(), frozenset())
    if code is op.SUBPATTERN:
        return _sequence(list(value[3]))
    if code is op.BRANCH:
        return _branches([_sequence(list(branch)) for branch in value[1]])
    if code in (op.MAX_REPEAT, op.MIN_REPEAT):
        return _repeat(*value)
    names = {op.GROUPREF: "a back-reference", op.ASSERT: "look-around", op.ASSERT_NOT: "look-around",
             op.GROUPREF_EXISTS: "a condition"}
    raise Mismatch(f"uses {names.get(code, str(code).lower().replace('_', ' '))}, which is not in the subset",
                  "describe the text itself, with classes, groups, alternatives and bounded repeats")


def _branches(parts: list[MatchBounds]) -> MatchBounds:
    """Bound alternatives; where no two can begin alike, at most one of them matches."""
    exclusive = (all(part.low > 0 for part in parts)
                 and sum(len(part.first) for part in parts) == len(frozenset().union(*(p.first for p in parts))))
    ways = max(part.ways for part in parts) if exclusive else sum(part.ways for part in parts)
    return MatchBounds(min(p.low for p in parts), max(p.high for p in parts), min(_CAP, ways),
                  exclusive and all(part.distinct for part in parts), sum(p.cost for p in parts),
                  frozenset().union(*(p.first for p in parts)), frozenset().union(*(p.chars for p in parts)))


def _repeat(low: int, high: int, body: Sequence[Any]) -> MatchBounds:
    """Bound a repeat; an open-ended one is refused."""
    if high == parser.MAXREPEAT:
        raise Mismatch("has a repeat without an upper bound", "write {1,64} instead of +, {0,64} instead of *")
    inner = _sequence(list(body))
    if high > 1 and inner.low == 0:
        raise Mismatch("repeats something that may be empty", "make the repeated part take at least one character")
    if high * inner.high > MAX_WIDTH:
        raise Mismatch(f"matches up to {high * inner.high} characters", f"bound it to {MAX_WIDTH}")
    ways, cost, product = high - low + 1, 1 + high * inner.cost, 1
    if inner.ways > 1:
        ways, cost = int(low == 0), 1
        for count in range(1, min(high, 64) + 1):  # 2**64 is beyond the cap
            cost = min(_CAP, inner.cost + inner.ways * cost)
            product = min(_CAP, product * inner.ways)
            ways = min(_CAP, ways + (product if count >= low else 0))
        ways = _CAP if high > 64 else ways
    return MatchBounds(low * inner.low, high * inner.high, max(1, ways), inner.ways == 1, cost, inner.first,
                       inner.chars)


def _characters(code: Any, value: Any) -> Chars:
    """Return the characters of a one-character node, letters in both cases (a flag may ignore
    case)."""
    if code is op.ANY:
        return _ALL
    if code is op.LITERAL:
        return _fold({min(value, _OTHER)})
    if code is op.NOT_LITERAL:
        return _ALL
    negated = bool(value) and value[0][0] is op.NEGATE
    chars: set[int] = set()
    for kind, entry in value[1:] if negated else value:
        if kind is op.LITERAL:
            chars.add(min(entry, _OTHER))
        elif kind is op.RANGE:
            chars.update(range(min(entry[0], _OTHER), min(entry[1], _OTHER) + 1))
        else:
            chars |= _category(entry)
    if not negated:
        return _fold(chars)
    return _ALL - frozenset(c for c in chars if c != _OTHER and not chr(c).isalpha()) | {_OTHER}


@functools.cache
def _category(entry: Any) -> Chars:
    """Return the characters of \\d, \\w, \\s or their opposites, beyond ASCII taken as possible."""
    tests = {op.CATEGORY_DIGIT: r"[0-9]", op.CATEGORY_NOT_DIGIT: r"[^0-9]", op.CATEGORY_SPACE: r"\s",
             op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W"}
    test = re.compile(tests[entry], re.ASCII) if entry in tests else re.compile(r"[\s\S]")
    return frozenset(c for c in range(_OTHER) if test.match(chr(c))) | {_OTHER}


def _fold(chars: set[int]) -> Chars:
    """Add the other case of each letter; k and s also fold to characters beyond ASCII."""
    letters = {c for c in chars if c != _OTHER and chr(c).isalpha()}
    swapped = {ord(chr(c).swapcase()) for c in letters}
    beyond = {_OTHER} if letters & {ord(c) for c in "kKsSiI"} else set()
    ascii_twins = {ord(c) for c in "kKsSiI"} if _OTHER in chars else set()
    return frozenset(chars | swapped | beyond | ascii_twins)


@dataclass(frozen=True)
class BoundedRegex(Kind):
    """A redaction pattern of the bounded subset."""

    def parse(self, value: Any) -> str:
        """Return the pattern as it is written."""
        expect(value, str, "a pattern in quotes")
        bounds(value)
        return str(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return (f"a regular expression whose repeats are bounded, without look-around and back-references, "
                f"that matches 1 to {MAX_WIDTH} characters")
