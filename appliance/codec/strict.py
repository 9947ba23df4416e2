"""JSON and base64 with one meaning and one spelling each: no key twice, no unused bit set, no
character passed over.

Everything else is a ValueError, and callers name what it was. `guest/` has the standard library
only and reads no such text from strangers.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import Any, NoReturn

STANDARD, URL = b"+/", b"-_"  # the last two letters of the alphabet: RFC 4648, sections 4 and 5


class SpellingError(ValueError):
    """Base64 that can be decoded, and is another spelling than its bytes have."""


class RepeatedKeyError(ValueError):
    """A key that stands twice in one JSON object."""

    def __init__(self, key: str) -> None:
        super().__init__("a key stands twice")
        self.key = key


def base64(text: str) -> bytes:
    """Bytes from base64 with padding (RFC 4648, section 4). Raises ValueError, SpellingError among
    them."""
    return _decoded(text, STANDARD, padded=True)


def base64url(text: str, *, padded: bool = False) -> bytes:
    """Bytes from base64url (RFC 4648, section 5), as JOSE has it without padding. Raises as
    `base64` does."""
    return _decoded(text, URL, padded=padded)


def to_base64url(data: bytes) -> str:
    """base64url without padding (RFC 7515, section 2)."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str, letters: bytes, *, padded: bool) -> bytes:
    given = text.encode("ascii")
    whole = given if padded else given + b"=" * (-len(given) % 4)
    data = b64decode(whole, letters, validate=True)
    again = b64encode(data, letters)
    if (again if padded else again.rstrip(b"=")) != given:
        raise SpellingError("another spelling than the bytes have")
    return data


def json_value(text: str | bytes, *, integers: bool = False) -> Any:
    """The value of a JSON text, in UTF-8 if it is bytes; with `integers` no other number is taken.

    Raises ValueError, RepeatedKeyError among it, also where nesting is too deep or a number too
    large.
    """
    try:
        decoder = INTEGERS if integers else _DECODER
        return decoder.decode(text if isinstance(text, str) else str(text, "utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members (`object_pairs_hook` of `json`). Raises RepeatedKeyError."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKeyError(key)
        found[key] = value
    return found


def _finite(text: str) -> float:
    """A number that a double can have. `float` makes infinity of 1e999."""
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("a number that is too large")
    return found


def _refused(text: str) -> NoReturn:
    raise ValueError("a number that JSON or this format has not")


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_float=_finite, parse_constant=_refused)
INTEGERS = json.JSONDecoder(object_pairs_hook=unique, parse_float=_refused, parse_constant=_refused)
