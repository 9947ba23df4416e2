"""Regular expressions that mean the same in every dialect, written for llguidance.

The dialects of ECMA-262 (JSON Schema's), Python and Rust differ in classes, anchors and escapes. A
pattern is read here and written again: a class becomes the code points that all dialects agree on,
so that whatever matches here matches in each of them. A pattern without such a reading is
refused: one with look-around, back references, word borders, flags, possessive repeats, Unicode
properties, or anchors within it.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import ConstraintError

Ranges = tuple[tuple[int, int], ...]  # code points, first and last; ascending, apart

MOST = 4096  # characters of a pattern
DEEPEST = 24  # groups within groups
MOST_REPEATS = 1000  # of one repeat
MOST_SIZE = 20_000  # characters and classes, with repeats written out
LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

UNWRITTEN: Ranges = ((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F))
"""Characters that our JSON has no spelling for. No class in a string's pattern has them: of one that has all control
characters llguidance takes the spellings \\" and \\\\, too, whether it has these two or not."""

_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ANY_SPACE: Ranges = ((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E),
                      (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
                      (0xFEFF, 0xFEFF))
_BEYOND_ASCII: Ranges = ((0x80, LAST),)
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_HEXADECIMAL = {"x": 2, "u": 4}


def union(*some: Ranges) -> Ranges:
    """The code points of all."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(pair for ranges in some for pair in ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """All other code points."""
    out, start = [], 0
    for first, last in ranges:
        if start < first:
            out.append((start, first - 1))
        start = last + 1
    return tuple([*out, (start, LAST)] if start <= LAST else out)


def minus(ranges: Ranges, others: Ranges) -> Ranges:
    """The code points of one and not the other."""
    return complement(union(complement(ranges), others))


@dataclass(frozen=True, slots=True)
class Class:
    """A set of characters: `sure` in every dialect, `maybe` in some."""

    sure: Ranges
    maybe: Ranges

    def inverted(self) -> Class:
        """All other characters."""
        return Class(complement(self.maybe), complement(self.sure))


def _one(code: int) -> Class:
    return Class(((code, code),), ((code, code),))


_SHORT = {"d": Class(_DIGITS, union(_DIGITS, _BEYOND_ASCII)), "w": Class(_WORD, union(_WORD, _BEYOND_ASCII)),
          "s": Class(_SPACE, _ANY_SPACE)}
_CLASSES = _SHORT | {letter.upper(): each.inverted() for letter, each in _SHORT.items()}
_DOT = Class(complement(((10, 10), (13, 13), (0x2028, 0x2029))), complement(((10, 10),)))


@dataclass(frozen=True, slots=True)
class Portable:
    """A pattern for a whole text, in Rust's syntax without anchors. Dialects differ in whether some
    class of it has the characters `unsure`: it has none of them."""

    text: str
    unsure: Ranges


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One way to match: is it bound to the start and the end of the text, and its pattern."""

    start: bool
    end: bool
    text: str


def whole(pattern: str) -> Portable:
    """The pattern, to match a text from its first character to its last. ConstraintError says what
    has no one meaning."""
    reader = PatternReader(pattern)
    return Portable("|".join(f"(?:{each.text})" for each in reader.read()), reader.unsure)


def search(pattern: str, without: Ranges = ()) -> Portable:
    """The pattern as JSON Schema reads it, for a string in JSON: somewhere in the text, unless
    anchors say where. It matches no text with a character of `without`."""
    barred = union(without, UNWRITTEN)
    reader = PatternReader(pattern, barred)
    anything = f"{class_of(complement(barred))}*" if without else "(?s:.*)"
    return Portable("|".join(f"(?:{'' if each.start else anything}{each.text}{'' if each.end else anything})"
                             for each in reader.read()), reader.unsure)


def containing(ranges: Ranges) -> str:
    """A pattern for a whole text that has a character of `ranges`."""
    return f"(?s:.*){class_of(ranges)}(?s:.*)"


def refusal(what: str, hint: str = "write it without, in plain classes, groups and repeats") -> ConstraintError:
    """The error for a part of a pattern, in words that are not its own."""
    return ConstraintError(f"a pattern has {what}, which is not enforced here", hint=hint)


class PatternReader:
    """Reads a pattern once, from left to right."""

    def __init__(self, pattern: str, without: Ranges = ()) -> None:
        if len(pattern) > MOST:
            raise refusal(f"{len(pattern)} characters", f"at most {MOST} are allowed")
        self._pattern, self._at, self._depth = pattern, 0, 0
        self._without, self.unsure = without, ()  # type: Ranges, Ranges

    def read(self) -> list[_Alternative]:
        """The alternatives of the whole pattern."""
        found, _ = self._alternatives()
        if self._at < len(self._pattern):
            raise refusal("a ) without its (")
        return found

    def _peek(self, count: int = 1) -> str:
        return self._pattern[self._at:self._at + count]

    def _take(self, count: int = 1) -> str:
        taken = self._peek(count)
        if len(taken) < count:
            raise refusal("an end in the middle of an escape, a class or a group")
        self._at += count
        return taken

    def _alternatives(self) -> tuple[list[_Alternative], int]:
        """The alternatives up to a closing bracket, and the largest size of one."""
        found, most = list[_Alternative](), 0
        while True:
            some, size = self._sequence()
            found += some
            most += size
            if self._peek() != "|":
                return found, most
            self._take()

    def _sequence(self) -> tuple[list[_Alternative], int]:
        """One alternative; several where it is nothing but a group, whose anchors then count."""
        start, parts, size = False, list[str](), 0
        alone: list[_Alternative] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "^":
                self._take()
                if parts or start:
                    raise refusal("a ^ within it")
                start = True
                continue
            if self._peek() == "$":
                self._take()
                if self._peek() not in ("", "|", ")"):
                    raise refusal("a $ within it")
                return self._closed(start, True, parts, alone), size
            if alone and any(each.start or each.end for each in alone):
                raise refusal("an anchor within it")
            text, cost, alone = self._atom()
            lows, times = self._repeat()
            if lows:
                if any(each.start or each.end for each in alone):
                    raise refusal("a repeated anchor")
                alone = []
            if parts and any(each.start or each.end for each in alone):
                raise refusal("an anchor within it")
            parts.append(text + lows)
            size += cost * times
            if size > MOST_SIZE:
                raise refusal("more than it can be with repeats written out", f"at most {MOST_SIZE} characters")
        return self._closed(start, False, parts, alone), size

    @staticmethod
    def _closed(start: bool, end: bool, parts: list[str], alone: list[_Alternative]) -> list[_Alternative]:
        """The alternatives of a sequence that has been read."""
        if len(parts) == 1 and alone:
            return [_Alternative(start or each.start, end or each.end, each.text) for each in alone]
        return [_Alternative(start, end, "".join(parts))]

    def _atom(self) -> tuple[str, int, list[_Alternative]]:
        """One character, class or group: its text, its size, and a group's alternatives."""
        if self._peek() == "(":
            self._take()
            return self._group()
        return self._written(self._single()), 1, []

    def _single(self) -> Class:
        """One character or class."""
        character = self._take()
        if character == "[":
            found = self._bracket()
        elif character == ".":
            found = _DOT
        elif character == "\\":
            found = self._escape(inside=False)
        elif character in "*+?{}]":
            raise refusal(f"a {character} where a character or a group should be", f"to mean it, write \\{character}")
        else:
            found = _one(ord(character))
        if found.sure != found.maybe:
            self.unsure = union(self.unsure, minus(found.maybe, found.sure))
        return found

    def _open(self) -> None:
        """Take what a group has before its pattern, after its bracket."""
        if self._peek() == "?":
            self._take()
            if self._peek() == ":":
                self._take()
            elif self._peek(2) == "P<" or (self._peek() == "<" and self._peek(2) not in ("<=", "<!")):
                self._name()
            elif self._peek(2) in ("<=", "<!"):
                raise refusal("a group that looks behind", "write what stands before as a part of the pattern")
            else:
                raise refusal("a group with ( ? that is neither (?: nor a name: flags, or look-ahead where it cannot "
                              "be written without")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise refusal("too many groups within groups", f"at most {DEEPEST} are allowed")

    def _shallower(self) -> None:
        """Take the bracket that ends a group."""
        self._depth -= 1
        if self._peek() != ")":
            raise refusal("a ( without its )")
        self._take()

    def _group(self) -> tuple[str, int, list[_Alternative]]:
        self._open()
        self._deeper()
        found, size = self._alternatives()
        self._shallower()
        return "(?:" + "|".join(each.text for each in found) + ")", max(size, 1), found

    def _name(self) -> None:
        """Skip the name of a group: nobody asks for what it matched."""
        self._at = self._pattern.find("<", self._at) + 1
        end = self._pattern.find(">", self._at)
        if end < 0 or not self._pattern[self._at:end].isidentifier():
            raise refusal("a group with a name that is none")
        self._at = end + 1

    def _repeat(self) -> tuple[str, int]:
        """A repeat, and how often it may come, for the size; "" and 1 without."""
        character = self._peek()
        if character == "" or character not in "*+?{":
            return "", 1
        self._take()
        text, times = character, 1
        if character == "{":
            end = self._pattern.find("}", self._at)
            low, comma, high = self._pattern[self._at:max(end, 0)].partition(",")
            if end < 0 or not _is_number(low) or not (high == "" or _is_number(high)):
                raise refusal("a { that is no repeat", "to mean the character, write \\{")
            times = max(int(low), int(high or 0), 1)
            if times > MOST_REPEATS or (high and int(high) < int(low)):
                raise refusal("a repeat that is too large, or of more than its most", f"at most {MOST_REPEATS}")
            text = "{" + low + comma + high + "}"
            self._at = end + 1
        if self._peek() == "?":  # lazy: the same texts match
            self._take()
        if self._peek() != "" and self._peek() in "*+?{":
            raise refusal("a repeat of a repeat")
        return text, times

    def _bracket(self) -> Class:
        inverted = self._peek() == "^"
        if inverted:
            self._take()
        if self._peek() == "]":
            raise refusal("an empty class, or a ] in the first place", "write \\] for the character")
        sure, maybe = list[Ranges](), list[Ranges]()
        while self._peek() != "]":
            each = self._member()
            if self._peek() == "-" and self._peek(2) != "-]":
                self._take()
                last = self._member()
                if len(each.sure) != 1 or each.sure != each.maybe or len(last.sure) != 1 or last.sure != last.maybe \
                        or each.sure[0][0] != each.sure[0][1] or last.sure[0][0] != last.sure[0][1] \
                        or each.sure[0][0] > last.sure[0][0]:
                    raise refusal("a range that is none", "write \\- for the character")
                both = ((each.sure[0][0], last.sure[0][0]),)
                each = Class(both, both)
            sure.append(each.sure)
            maybe.append(each.maybe)
        self._take()
        found = Class(union(*sure), union(*maybe))
        return found.inverted() if inverted else found

    def _member(self) -> Class:
        character = self._take()
        if character == "\\":
            return self._escape(inside=True)
        if character == "[" or (character in "&~|-" and self._peek() == character):
            raise refusal("a [ within a class, or a sign twice", f"write \\{character}")
        return _one(ord(character))

    def _escape(self, inside: bool) -> Class:
        letter = self._take()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return _one(_CONTROLS[letter])
        if letter in _HEXADECIMAL:
            digits = self._take(_HEXADECIMAL[letter])
            if any(each not in "0123456789abcdefABCDEF" for each in digits) \
                    or _SURROGATES[0] <= int(digits, 16) <= _SURROGATES[1]:
                raise refusal(f"an escape \\{letter} that is no character")
            return _one(int(digits, 16))
        if letter.isalnum() or ord(letter) >= 0x80 or letter == "_":
            raise refusal("an escape of a letter or digit that is no class: a border, a property, a reference")
        return _one(ord(letter))

    def _written(self, each: Class) -> str:
        return class_of(minus(each.sure, self._without) if self._without else each.sure)


def class_of(sure: Ranges) -> str:
    """A class of characters, as a pattern."""
    ranges = [pair for first, last in sure for pair in _without_surrogates(first, last)]
    if not ranges:
        raise refusal("a class without a character that is sure")
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _literal(ranges[0][0])
    return "[" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges) + "]"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def literal(text: str) -> str:
    """A pattern for a text as it is."""
    return "".join(_literal(ord(character)) for character in text)


def _literal(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and (character.isalnum() or character == "_") else f"\\x{{{code:X}}}"


def _without_surrogates(first: int, last: int) -> list[tuple[int, int]]:
    """A range without the code points that are no characters."""
    low, high = _SURROGATES
    return [(a, b) for a, b in ((first, min(last, low - 1)), (max(first, high + 1), last)) if a <= b]
