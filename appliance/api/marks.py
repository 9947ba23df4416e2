"""How much there is in a JSON text, before it is read: objects of it take many times their bytes,
and time to check.

Reading holds the interpreter, and with it the streams of others, for as long as the text has
strings and lists; a long text alone is nothing. So marks are counted first, a step at a time:
strings, and the brackets and commas between them.
"""

from __future__ import annotations

from appliance.api.problems import RequestError

MOST = 65_536
"""Marks of a body, beside one for each token id that a prompt may have. A message has 8, or 13 with
a part in it."""
_QUOTE, _BACKSLASH = b'"', ord("\\")


def check(body: bytes, most: int) -> None:
    """Refuse a body with more marks than `most`; RequestError."""
    if count(body, most) > most:
        raise RequestError("invalid_value", f"the body has too many values: it may have {most} strings, brackets and "
                           "commas between strings")


def count(body: bytes, most: int) -> int:
    """Return an upper bound of a body's marks, which is above `most` only if their number is."""
    at_most = _between(body, 0, len(body)) + body.count(_QUOTE) // 2  # also within strings
    if at_most <= most:
        return at_most
    place, marks = 0, 0
    while place < len(body) and marks <= most:
        begin = body.find(_QUOTE, place)
        marks += _between(body, place, begin if begin >= 0 else len(body)) + (begin >= 0)
        place = _after_string(body, begin + 1) if begin >= 0 else len(body)
    return marks


def _between(body: bytes, begin: int, end: int) -> int:
    return sum(body.count(mark, begin, end) for mark in (b",", b"[", b"{"))


def _after_string(body: bytes, place: int) -> int:
    """Return where a string ends whose first character is at `place`."""
    while (end := body.find(_QUOTE, place)) >= 0:
        slash = end
        while slash > place and body[slash - 1] == _BACKSLASH:
            slash -= 1
        if (end - slash) % 2 == 0:
            return end + 1
        place = end + 1
    return len(body)
