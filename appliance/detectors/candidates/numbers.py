"""Digits with separators between them: the candidates of all detectors of numbers.

A run is taken as a whole, so that a part of a longer number is never taken for a number of its own.
A detector names the forms that it knows, with 0 for a digit: `000-00-0000`.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.detectors.candidates.row import Candidate

RUN = (r"(?a)(?:\+\(?|\(\+?)?\b[0-9](?:[0-9]|[ ./()-](?:[0-9]|[ ()-](?:[0-9]|[ (][0-9]))){5,150}(?:[Xx]\b|\b)")

LEAD, LEAST = 2, 6  # characters of a run before its first digit, at most; and its digits, at least

_JOINS = (".", "/", "-")


def forms(*groups: str) -> dict[int, frozenset[str]]:
    """Return forms by their length. `3 2 4|- ` is 9 digits in three groups, with dashes or spaces
    between them; `17X` is 17 digits and an X."""
    found: dict[int, set[str]] = {}
    for group in groups:
        lengths, _, separators = group.partition("|")
        for separator in separators or ("",):
            form = separator.join("0" * int(each.rstrip("X")) + "X" * each.count("X") for each in lengths.split())
            found.setdefault(len(form), set()).add(form)
    return {length: frozenset(some) for length, some in found.items()}


def digits_of(text: str) -> str:
    """Return the digits of a text."""
    return "".join(filter(str.isdecimal, text))


def windows(candidate: Candidate, known: dict[int, frozenset[str]]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and text of each part of a run in one of these forms that is not a part of
    a longer number."""
    text, shape = candidate.text, candidate.shape
    for start in candidate.starts:
        for length, some in known.items():
            stop = start + length
            if shape[start:stop] in some and _apart(text, start, stop):
                yield start, stop, text[start:stop]


def _apart(text: str, start: int, stop: int) -> bool:
    """Whether neither more of a word or number nor a joined part of one stands beside."""
    if text[stop:stop + 1].isalnum() or (text[stop:stop + 1] in _JOINS and text[stop + 1:stop + 2].isalnum()):
        return False
    before = text[start - 1:start]
    if before in _JOINS:
        return not any(map(str.isdecimal, _word(text, start - 1)))
    return not (before.isascii() and before.isalnum()) and text[max(0, start - 2):start] != "0,"


def _word(text: str, end: int) -> str:
    """Return the letters and digits before a place."""
    start = end
    while start and text[start - 1].isascii() and text[start - 1].isalnum():
        start -= 1
    return text[start:end]
