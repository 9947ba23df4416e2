"""Find special tokens within text: which stretches are a token, which are to be tokenized as words.

The longest special token is looked for first, over the whole text, then the next: as llama.cpp does
it, which differs from a search from left to right where tokens overlap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from appliance.errors import CapacityError
from appliance.text.tokenizer.vocabulary import SPECIAL, TokenKind, Vocabulary, is_mark, special_tokens

TEXT = -1  # Fragment.token of a stretch that is no special token
_SPACE = " \t\n\v\f\r"

Span = tuple[int, int]  # start and end, in characters


class Fragment(NamedTuple):
    """A stretch of the text: `text[start:end]`, and the special token that it is, or TEXT."""

    start: int
    end: int
    token: int


class _Special(NamedTuple):
    text: str
    token: int
    kind: int


class SpecialText(NamedTuple):
    """A special token that a text is searched for."""

    text: str
    token: int
    guarded: bool  # not found where it touches an untrusted span
    strips: bool  # white space after it belongs to it


class Partitioner:
    """The special tokens of a vocabulary, longest first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        found = [_Special(vocabulary.texts[token], token, vocabulary.kinds[token])
                 for token in special_tokens(vocabulary)]
        found.sort(key=lambda special: -len(special.text.encode("utf-8", "surrogateescape")))
        self._all = found
        self._user_defined = [special for special in found if not special.kind & SPECIAL]

    def whole(self, text: str) -> int | None:
        """The control token whose text this is; None where there is no such token."""
        return next((each.token for each in self._all if each.text == text and each.kind & SPECIAL), None)

    def specials(self, parse_special: bool, own: str) -> tuple[SpecialText, ...]:
        """The texts that `partition` searches for, in its order."""
        return tuple(SpecialText(each.text, each.token, _is_guarded(each, own),
                                 bool(each.kind & TokenKind.STRIP_RIGHT))
                     for each in (self._all if parse_special else self._user_defined))

    def partition(self, text: str, parse_special: bool, untrusted: Sequence[Span] = (), own: str = "",
                  most: int = sys.maxsize) -> list[Fragment]:
        """The fragments of `text`, in order, none of them empty text. Control tokens are found only
        with `parse_special`, and never where they touch an `untrusted` span; user-defined tokens
        always are, but those that mark something in `own` never there either. CapacityError when
        more than `most` are found."""
        specials = self._all if parse_special else self._user_defined
        present = [special for special in specials if special.text in text]
        if not present:
            return [Fragment(0, len(text), TEXT)] if text else []
        taken = bytearray(len(text))  # 1 where a special token lies
        barred = bytearray(len(text))  # 1 where no control token may lie
        for start, end in untrusted:
            barred[start:end] = b"\1" * (end - start)
        found: list[Fragment] = []
        for special in present:
            for fragment in _occurrences(text, special, taken, barred if _is_guarded(special, own) else None):
                found.append(fragment)
                check_count(len(found), most)
        found.sort()
        return list(_with_text_between(found, len(text)))


def _is_guarded(special: _Special, own: str) -> bool:
    return bool(special.kind & SPECIAL) or (special.text in own and is_mark(special.text))


def check_count(least: int, most: int) -> None:
    """CapacityError when a text that has `least` tokens, if not more, has more than `most`."""
    if least > most:
        raise CapacityError(f"the text has more than {most} tokens", code="text-too-long")


def _occurrences(text: str, special: _Special, taken: bytearray, barred: bytearray | None) -> Iterable[Fragment]:
    """All places of one special token that are still free, from left to right; they are taken then.
    """
    length = len(special.text)
    at = text.find(special.text)
    while at >= 0:
        end = at + length
        blocked = max(taken.rfind(1, at, end), barred.rfind(1, at, end) if barred else -1)
        if blocked >= 0:
            free = taken.find(0, blocked + 1)
            at = text.find(special.text, free) if free >= 0 else -1
            continue
        if special.kind & TokenKind.STRIP_RIGHT:
            while end < len(text) and text[end] in _SPACE and not taken[end]:
                end += 1
        taken[at:end] = b"\1" * (end - at)
        yield Fragment(at, end, special.token)
        at = text.find(special.text, end)


def _with_text_between(found: Iterable[Fragment], length: int) -> Iterable[Fragment]:
    at = 0
    for fragment in found:
        if fragment.start > at:
            yield Fragment(at, fragment.start, TEXT)
        yield fragment
        at = fragment.end
    if at < length:
        yield Fragment(at, length, TEXT)
