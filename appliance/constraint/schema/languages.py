"""Languages with intersection and complement, and a pattern for one of them.

A language is the number of a row in a table, where equal ones share a row. Its derivatives by each
class of characters (Brzozowski, 1964) are the states of an automaton. When these are taken away one
by one, a pattern is left. All of that is exact, and bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.constraint.schema.dialects import LAST, Ranges, union
from appliance.errors import ConstraintError

MOST_WORK = 100_000  # steps for all patterns of a grammar: some tenths of a second
MOST_STATES = 64
MOST_INTERVALS = 200  # of characters that are told apart
MOST_CHARACTERS = 8192  # of a pattern
MOST_WRITTEN = 1 << 18  # characters of all patterns on the way to it

NOTHING, EMPTY, CHARACTER, ANY = range(4)
"""The languages with no text, with the empty one, with every text of one character, with all."""

Row = tuple[object, ...]
Automaton = dict[int, dict[int, Ranges]]
"""By each state, the characters that lead on from it, by where they lead."""


class TooLargeError(ConstraintError):
    """A pattern cannot be written within the bounds."""

    def __init__(self) -> None:
        super().__init__("a pattern looks ahead for more than can be written without", hint="write each condition as a "
                         "pattern of its own, in allOf; or write what is allowed, without looking ahead")


class Work:
    """The steps that are left for patterns that belong together."""

    def __init__(self) -> None:
        self._left = MOST_WORK

    def spend(self, steps: int) -> None:
        """Count steps; TooLargeError where none are left."""
        self._left -= steps
        if self._left < 0:
            raise TooLargeError


class Languages:
    """A table of languages."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._rows: list[Row] = []
        self._numbers: dict[Row, int] = {}
        self._has_empty: list[bool] = []
        self._derived: dict[tuple[int, int], int] = {}
        for row, has_empty in ((("set", ()), False), (("empty",), True), (("set", ((0, LAST),)), False),
                               (("many", CHARACTER), True)):
            self._row(row, has_empty)

    def _row(self, row: Row, has_empty: bool) -> int:
        if row not in self._numbers:
            self.work.spend(1)
            self._numbers[row] = len(self._rows)
            self._rows.append(row)
            self._has_empty.append(has_empty)
        return self._numbers[row]

    def has_empty(self, language: int) -> bool:
        """Whether the empty text is one of it."""
        return self._has_empty[language]

    def of(self, ranges: Ranges) -> int:
        """The texts of one of these characters."""
        return self._row(("set", ranges), False)

    def then(self, first: int, second: int) -> int:
        """A text of the first and one of the second in a row."""
        if NOTHING in (first, second):
            return NOTHING
        if EMPTY in (first, second):
            return second if first == EMPTY else first
        return self._row(("then", first, second), self._has_empty[first] and self._has_empty[second])

    def many(self, language: int) -> int:
        """Any number of texts in a row."""
        return EMPTY if language in (NOTHING, EMPTY) else self._row(("many", language), True)

    def either(self, *languages: int) -> int:
        """The texts of any of them."""
        some = tuple(sorted({*languages} - {NOTHING}))
        if len(some) < 2 or ANY in some:
            return ANY if ANY in some else some[0] if some else NOTHING
        return self._row(("either", some), any(map(self.has_empty, some)))

    def both(self, *languages: int) -> int:
        """The texts that are in all of them."""
        some = tuple(sorted({*languages} - {ANY}))
        if EMPTY in some:
            return EMPTY if all(map(self.has_empty, some)) else NOTHING
        if len(some) < 2 or NOTHING in some:
            return NOTHING if NOTHING in some else some[0] if some else ANY
        return self._row(("both", some), all(map(self.has_empty, some)))

    def inverse(self, language: int) -> int:
        """All other texts."""
        if language in (NOTHING, ANY):
            return ANY if language == NOTHING else NOTHING
        return self._row(("inverse", language), not self._has_empty[language])

    def _after(self, language: int, code: int) -> int:
        """The rest of those texts that begin with a character."""
        if (language, code) not in self._derived:
            self.work.spend(1)
            self._derived[language, code] = self._derivative(self._rows[language], code)
        return self._derived[language, code]

    def _derivative(self, row: Row, code: int) -> int:
        match row:
            case ("set", tuple(ranges)):
                return EMPTY if any(first <= code <= last for first, last in ranges) else NOTHING
            case ("then", int(first), int(second)):
                rest = self.then(self._after(first, code), second)
                return self.either(rest, self._after(second, code)) if self._has_empty[first] else rest
            case ("many", int(inner)):
                return self.then(self._after(inner, code), self.many(inner))
            case ("either", tuple(some)):
                return self.either(*(self._after(each, code) for each in some))
            case ("both", tuple(some)):
                return self.both(*(self._after(each, code) for each in some))
            case ("inverse", int(inner)):
                return self.inverse(self._after(inner, code))
        return NOTHING

    def _classes(self) -> list[Ranges]:
        """Characters that no set of the table tells apart, together."""
        sets = [row[1] for row in self._rows if row[0] == "set"]
        starts = sorted({0} | {edge for ranges in sets for first, last in ranges  # type: ignore[attr-defined]
                               for edge in (first, last + 1) if edge <= LAST})
        if len(starts) > MOST_INTERVALS:
            raise TooLargeError
        self.work.spend(len(starts) * len(sets) // 8)
        found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
        for start, end in zip(starts, [*starts[1:], LAST + 1], strict=True):
            told = tuple(any(first <= start <= last for first, last in ranges)  # type: ignore[attr-defined]
                         for ranges in sets)
            found.setdefault(told, []).append((start, end - 1))
        return [union(tuple(some)) for some in found.values()]

    def pattern(self, language: int, write: Callable[[Ranges], str | None]) -> str | None:
        """A pattern for whole texts; None where there are none. `write` gives a class of
        characters, or None for one that has none."""
        edges, classes = Automaton(), self._classes()
        waiting = [language]
        while waiting:
            state = waiting.pop()
            if state in edges:
                continue
            if len(edges) >= MOST_STATES:
                raise TooLargeError
            edges[state] = {}
            self.work.spend(len(classes))
            for ranges in classes:
                target = self._after(state, ranges[0][0])
                if target != NOTHING:
                    edges[state][target] = union(edges[state].get(target, ()), ranges)
                    waiting.append(target)
        self.work.spend(4 * len(edges) ** 2)
        return _eliminated(edges, language, [state for state in edges if self._has_empty[state]], write)


_BEGIN, _END = -1, -2


def _eliminated(automaton: Automaton, start: int, ends: Iterable[int], write: Callable[[Ranges], str | None]
                ) -> str | None:
    """The pattern of an automaton: each state is taken away, and its ways are written on others."""
    ways: dict[int, dict[int, str]] = {_BEGIN: {start: ""}, **{state: {} for state in automaton}}
    for state, sets in automaton.items():
        for target, ranges in sets.items():
            text = write(ranges)
            ways[state] |= {} if text is None else {target: text}
    for state in ends:
        ways[state][_END] = ""
    left, written = set(automaton), 0
    while left:
        into = {state: [each for each in ways if each != state and state in ways[each]] for state in left}
        state = min(left, key=lambda each: (len(into[each]) * len(ways[each]), each))
        left.discard(state)
        targets = ways.pop(state)
        loop = targets.pop(state, None)
        around = "" if loop is None else f"(?:{loop})*"
        for source in into[state]:
            before = ways[source].pop(state)
            for target, after in targets.items():
                _add(ways[source], target, before + around + after)
                written += len(ways[source][target])
                if written > MOST_WRITTEN:
                    raise TooLargeError
    return ways[_BEGIN].get(_END)


def _add(ways: dict[int, str], target: int, text: str) -> None:
    """Add a way to those that lead to a state."""
    if target in ways and ways[target] != text:
        text = f"(?:{ways[target]}|{text})"
    if len(text) > MOST_CHARACTERS:
        raise TooLargeError
    ways[target] = text
