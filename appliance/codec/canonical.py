"""Canonical JSON: RFC 8785 (JCS). One text for one value, so that its hash means the value.

Values are None, booleans, integers of at most 53 bits, finite floats, strings without lone
surrogates, and lists and string-keyed mappings of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LIMIT = 2**53 - 1  # RFC 8785, 3.2.2.3 by way of I-JSON (RFC 7493, 2.2)


def canonical(value: Any) -> bytes:
    """Return the canonical JSON text of a value as UTF-8. Raises ValueError for a value that has
    none, or that is nested too deep to be written."""
    try:
        return "".join(_parts(value)).encode("utf-8")
    except RecursionError:
        raise ValueError("a value that is nested so deep has no canonical form here") from None


def _parts(value: Any) -> list[str]:
    """Return the pieces of a value's text."""
    if value is None or isinstance(value, bool):
        return ["null" if value is None else "true" if value else "false"]
    if isinstance(value, int):
        if abs(value) > _LIMIT:
            raise ValueError("an integer beyond 53 bits has no canonical form")
        return [str(int(value))]
    if isinstance(value, float):
        return [number(value)]
    if isinstance(value, str):
        return [string(value)]
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        parts = ["["]
        for index, item in enumerate(value):
            parts += [","] * (index > 0) + _parts(item)
        return [*parts, "]"]
    raise ValueError(f"a {type(value).__name__} has no canonical form")


def _object(value: Mapping[Any, Any]) -> list[str]:
    """RFC 8785, 3.2.3: keys are sorted by their UTF-16 code units."""
    if not all(isinstance(key, str) for key in value):
        raise ValueError("a key that is no string has no canonical form")
    parts = ["{"]
    ascii_only = all(key.isascii() for key in value)  # then code units are characters
    for index, key in enumerate(sorted(value) if ascii_only else sorted(value, key=_utf16)):
        parts += [","] * (index > 0) + [string(key), ":"] + _parts(value[key])
    return [*parts, "}"]


def _utf16(text: str) -> bytes:
    try:
        return text.encode("utf-16-be")
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate has no canonical form") from None


def string(text: str) -> str:
    """RFC 8785, 3.2.2.2: short escapes where JSON has them, \\u00xx for other controls, all else as
    it is."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    _utf16(text)
    return '"' + "".join(_SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'


def number(value: float) -> str:
    """RFC 8785, 3.2.2.3: the text that ECMAScript gives a number (ECMA-262, Number::toString).

    Python's repr has the same shortest digits; only the layout differs.
    """
    if not math.isfinite(value):
        raise ValueError("an infinite number or NaN has no canonical form")
    if value == 0:
        return "0"
    if value < 0:
        return "-" + number(-value)
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)  # the decimal point stands before digit number `point`
    digits = whole + fraction
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    if 0 < point <= 21:
        if len(digits) <= point:
            return digits + "0" * (point - len(digits))
        return digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    power = point - 1
    sign = "+" if power >= 0 else "-"
    return digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + "e" + sign + str(abs(power))
