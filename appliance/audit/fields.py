"""The types of audit fields: each decides whether a value may be written.

No type accepts free text. A string is a number of ours in hex, a word of a closed set, or a place
in our own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

Value = str | int | bool | None


class Field(Protocol):
    """Decides about one value."""

    def accepts(self, value: object) -> bool:
        """Whether the value may be written."""
        ...


@dataclass(frozen=True)
class Integer:
    """A whole number from 0 to `most`."""

    most: int = (1 << 53) - 1

    def accepts(self, value: object) -> bool:
        """Whether it is an int (not a bool) in range."""
        return type(value) is int and 0 <= value <= self.most


@dataclass(frozen=True)
class Boolean:
    """True or false."""

    def accepts(self, value: object) -> bool:
        """Whether it is a bool."""
        return type(value) is bool


@dataclass(frozen=True)
class StringForm:
    """A string of ours in a shape that holds no text: digests, ids, versions, places in our code.
    """

    regex: str
    most: int
    words: str

    def accepts(self, value: object) -> bool:
        """Whether it is a short enough string in the shape."""
        return type(value) is str and len(value) <= self.most and re.fullmatch(self.regex, value) is not None


@dataclass(frozen=True)
class Word:
    """One of a few words that are fixed here."""

    words: frozenset[str]

    def accepts(self, value: object) -> bool:
        """Whether it is one of the words."""
        return type(value) is str and value in self.words


@dataclass
class WordSet:
    """A closed set of words that is filled at boot from the policy or from tables in our code, then
    sealed."""

    source: str
    words: set[str] = field(default_factory=set)
    sealed: bool = False

    _WORD = re.compile(r"[A-Za-z0-9/][A-Za-z0-9 ._:/{}()-]{0,95}")

    def admit(self, words: Iterable[str]) -> None:
        """Add words. Raises ValueError once sealed, or on a word of odd shape."""
        for word in words:
            if self.sealed and word not in self.words:
                raise ValueError(f"the audit vocabulary of {self.source} is sealed")
            if not self._WORD.fullmatch(word):
                raise ValueError(f"not a word for the audit vocabulary of {self.source}: {word[:40]!r}")
            self.words.add(word)

    def extend(self, words: Iterable[str]) -> None:
        """Add words of a document that was signed after the boot. Raises ValueError on a word of
        odd shape."""
        sealed, self.sealed = self.sealed, False
        try:
            self.admit(words)
        finally:
            self.sealed = sealed

    def accepts(self, value: object) -> bool:
        """Whether it is a word of the set."""
        return type(value) is str and value in self.words


@dataclass(frozen=True)
class CountByWord:
    """A count for each of some words, or for each pair of words. Others are left out."""

    words: Field
    of: Field = Integer()

    def accepts(self, value: object) -> bool:
        """Whether it is an object with a word of the type and an accepted value in each member."""
        return type(value) is dict and bool(value) and all(
            self.words.accepts(word) and self.of.accepts(count) for word, count in value.items())


def hex_bytes(count: int) -> StringForm:
    """`count` bytes in lower-case hex."""
    return StringForm(f"[0-9a-f]{{{2 * count}}}", 2 * count, f"{count} bytes in hex")


def choice(*words: str) -> Word:
    """A `Word` of these words."""
    return Word(frozenset(words))
