"""Patterns that look ahead, written as patterns that do not.

`^(?=a)(?!b)c` is what `^a` and `^c` find and `^b` does not. So each condition at the begin of a
pattern becomes a pattern of its own. A condition elsewhere holds for all that follows it, which
`languages` writes out as a whole, where that is small enough.

The texts are the same in every dialect, and the same as before: but where dialects differ over a
class, a text that one of them might refuse is refused.
"""

from __future__ import annotations

from appliance.constraint.schema import dialects
from appliance.constraint.schema.dialects import (
    UNWRITTEN,
    Class,
    PatternReader,
    Portable,
    Ranges,
    class_of,
    minus,
    union,
)
from appliance.constraint.schema.languages import ANY, EMPTY, NOTHING, Languages, TooLargeError, Work
from appliance.errors import ConstraintError

FEW = 8  # times that a group with a condition may come

Node = tuple[object, ...]

_EQUAL = {before: after for letters in ("A-Za-z", "a-zA-Z") for before, after in [(
    rf"^(?!\.)(?!.*\.\.)([{letters}0-9_'+\-\.]*)[{letters}0-9_+-]@([{letters}0-9][{letters}0-9\-]*\.)+[{letters}]{{2,}}$",
    rf"^(?:[{letters}0-9_'+\-]+\.)*[{letters}0-9_'+\-]*[{letters}0-9_+-]@(?:[{letters}0-9][{letters}0-9\-]*\.)+"
    rf"[{letters}]{{2,}}$")]}
"""Patterns of libraries, by hand: zod's for mail addresses. llguidance proves more about these than about several, and
zod itself writes them so by now."""


def looks(pattern: str) -> bool:
    """Whether a pattern may look ahead."""
    return "(?=" in pattern or "(?!" in pattern


def search(pattern: str, work: Work) -> list[Portable]:
    """As `dialects.search`: the patterns of which a text has to match each. `work` is what may be
    spent."""
    pattern = _EQUAL.get(pattern, pattern)
    if not looks(pattern):
        return [dialects.search(pattern)]
    conditions, rest = _conditions(pattern)
    found = [name(f"^(?!{inner})" if opposed else f"^(?:{inner})", work) for opposed, inner in conditions]
    return [*found, name(rest, work)]


def whole(pattern: str, work: Work) -> Portable:
    """As `dialects.whole`."""
    pattern = _EQUAL.get(pattern, pattern)
    if not looks(pattern):
        return dialects.whole(pattern)
    reader = _TreeReader(pattern)
    tree = reader.tree()
    writer = _LanguageWriter(work)
    return _written(writer, writer.meant(tree, EMPTY, begun=False), reader.unsure, ())


def name(pattern: str, work: Work, without: Ranges = ()) -> Portable:
    """As `dialects.search`, in one pattern."""
    pattern = _EQUAL.get(pattern, pattern)
    return _one(pattern, work, without) if looks(pattern) else dialects.search(pattern, without)


def _conditions(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """The conditions at the begin of a pattern, each with whether it is opposed, and the rest. None
    where the pattern has alternatives, of which they would hold for the first one."""
    anchor, at = pattern.startswith("^"), int(pattern.startswith("^"))
    found = []
    while anchor and pattern.startswith(("(?=", "(?!"), at):
        end = _closing(pattern, at)
        found.append((pattern[at + 2] == "!", pattern[at + 3:end]))
        at = end + 1
    return ([], pattern) if _closing(pattern, at, "|") < len(pattern) else (found, f"{'^' * anchor}{pattern[at:]}")


def _closing(pattern: str, at: int, sign: str = ")") -> int:
    """The place of the bracket that closes the group at a place, or of another sign outside of
    groups; the length of the pattern where there is none."""
    depth, is_class = 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif is_class:
            is_class = character != "]"
        elif character == "[":
            is_class = True
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        if character == sign and not is_class and depth == 0:
            return at
        at += 1
    return len(pattern)


def _one(pattern: str, work: Work, without: Ranges) -> Portable:
    """The texts in which a pattern is found, as one pattern."""
    reader = _TreeReader(pattern)
    tree = reader.tree()
    writer = _LanguageWriter(work)
    later = writer.table.then(writer.table.of(((0, dialects.LAST),)), ANY)
    later = writer.table.then(later, writer.meant(tree, ANY, begun=True))
    found = writer.table.either(writer.meant(tree, ANY, begun=False), later)
    return _written(writer, found, reader.unsure, union(without, UNWRITTEN))


def _written(writer: _LanguageWriter, language: int, unsure: Ranges, barred: Ranges) -> Portable:
    def write(ranges: Ranges) -> str | None:
        left = minus(ranges, barred)
        return "(?s:.)" if ranges == ((0, dialects.LAST),) else class_of(left) if left else None

    try:
        text = writer.table.pattern(language, write)
    except RecursionError:
        raise TooLargeError from None
    if text is None:
        raise ConstraintError("a pattern has conditions that no text meets", hint="one that some text matches")
    return Portable(text, unsure)


class _TreeReader(PatternReader):
    """Reads a pattern as a tree."""

    def tree(self) -> Node:
        """The whole pattern."""
        found = self._choice()
        if self._peek():
            raise dialects.refusal("a ) without its (")
        return found

    def _choice(self) -> Node:
        found = [self._row()]
        while self._peek() == "|":
            self._take()
            found.append(self._row())
        return ("either", found)

    def _row(self) -> Node:
        found = list[Node]()
        while self._peek() not in ("", "|", ")"):
            character = self._take()
            each: Node
            if character in "^$":
                each = ("begin" if character == "^" else "end",)
            elif character == "(":
                each = self._inner()
            else:
                self._at -= 1
                each = ("set", self._single())
            text, _ = self._repeat()
            found.append(each if not text else ("repeat", each, *_bounds(text)))
        return ("row", found)

    def _inner(self) -> Node:
        kind = self._peek(2)
        if kind in ("?=", "?!"):
            self._take(2)
        else:
            self._open()
        self._deeper()
        found = self._choice()
        self._shallower()
        return ("look", kind == "?!", found) if kind in ("?=", "?!") else found


def _bounds(repeat: str) -> tuple[int, int | None]:
    if repeat in ("*", "+", "?"):
        return int(repeat == "+"), 1 if repeat == "?" else None
    low, comma, high = repeat[1:-1].partition(",")
    return int(low), int(high) if high else None if comma else int(low)


class _LanguageWriter:
    """Gives trees their meaning: the texts from a place on to the end of the text."""

    def __init__(self, work: Work) -> None:
        self.table = Languages(work)

    def meant(self, node: Node, rest: int, *, begun: bool, opposed: bool = False) -> int:
        """The language of a tree with what may follow it. `begun`: a character stands before it.
        Where it is `opposed`, a class has all that it has in some dialect."""
        table = self.table
        table.work.spend(1)
        match node:
            case ("set", Class() as each):
                return table.then(table.of(each.maybe if opposed else each.sure), rest)
            case ("begin",):
                return NOTHING if begun else rest
            case ("end",):
                return table.both(rest, table.either(EMPTY, table.of(((10, 10),)) if opposed else NOTHING))
            case ("either", list(some)):
                return table.either(*(self.meant(each, rest, begun=begun, opposed=opposed) for each in some))
            case ("look", True, tuple(inner)):
                barred = self.meant(inner, ANY, begun=begun, opposed=not opposed)
                return table.both(table.inverse(barred), rest)
            case ("look", False, tuple(inner)):
                return table.both(self.meant(inner, ANY, begun=begun, opposed=opposed), rest)
            case ("row", list(some)):
                for place in range(len(some) - 1, -1, -1):
                    after = begun or not all(map(_is_place, some[:place]))
                    rest = self.meant(some[place], rest, begun=after, opposed=opposed)
                return rest
            case ("repeat", tuple(inner), int(low), high):
                return self._repeated(inner, low, high, rest, begun=begun, opposed=opposed)  # type: ignore[arg-type]
        raise ValueError("no tree")

    def _repeated(self, inner: Node, low: int, high: int | None, rest: int, *, begun: bool, opposed: bool) -> int:
        table, most = self.table, low if high is None else high
        if _has_place(inner) and (high is None or high > FEW):
            raise dialects.refusal("a condition or an anchor in a group that repeats")
        if high is None:
            rest = table.then(table.many(self.meant(inner, EMPTY, begun=True, opposed=opposed)), rest)
        end = rest
        for number in range(most, 0, -1):
            rest = self.meant(inner, rest, begun=begun or number > 1, opposed=opposed)
            rest = rest if number <= low else table.either(end, rest)
        return rest


def _is_place(node: Node) -> bool:
    """Whether a tree takes no character."""
    return node[0] in ("begin", "look")


def _has_place(node: Node) -> bool:
    """Whether a tree has a condition or an anchor within it."""
    return node[0] in ("begin", "end", "look") or any(
        _has_place(each) for part in node[1:] for each in (part if isinstance(part, list) else [part])
        if isinstance(each, tuple))
