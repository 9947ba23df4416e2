"""Just enough CBOR (RFC 8949) for evidence in certificates and for receipts: definite lengths,
shortest forms, nothing after the end.

Integers, byte and text strings, arrays, maps with text or integer keys, and tags. No floats, no
indefinite lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.codec.cbor import ARRAY, BYTES, MAP, NEGATIVE, TAG, TEXT, UNSIGNED
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

MAX_DEPTH = 8


@dataclass(frozen=True)
class TaggedItem:
    """A value under a tag number."""

    tag: int
    value: Value


Value = int | bytes | str | list["Value"] | dict["str | int", "Value"] | TaggedItem


def decode(data: bytes) -> Value:
    """The one value that `data` is. Raises MalformedEvidenceError on anything else."""
    cursor = Cursor(data, "CBOR", "big")
    value = _value(cursor, MAX_DEPTH)
    cursor.end()
    return value


def _argument(cursor: Cursor, low: int) -> int:
    if low < 24:
        return low
    if low > 27:
        raise MalformedEvidenceError("CBOR: an indefinite or reserved length")
    width = 1 << low - 24
    number = cursor.number(width, "argument")
    if number < (24 if width == 1 else 1 << 4 * width):
        raise MalformedEvidenceError("CBOR: a number is not in its shortest form")
    return number


def _value(cursor: Cursor, depth: int) -> Value:
    if not depth:
        raise MalformedEvidenceError(f"CBOR: more than {MAX_DEPTH} levels")
    head = cursor.number(1, "head")
    major, number = head >> 5, _argument(cursor, head & 0x1F)
    if major == UNSIGNED:
        return number
    if major == NEGATIVE:
        return -1 - number
    if major == BYTES:
        return cursor.take(number, "byte string")
    if major == TEXT:
        return _text(cursor.take(number, "text string"))
    if major == TAG:
        return TaggedItem(number, _value(cursor, depth - 1))
    if major == ARRAY and number <= cursor.left:
        return [_value(cursor, depth - 1) for _ in range(number)]
    if major == MAP and 2 * number <= cursor.left:
        return _map(cursor, number, depth)
    raise MalformedEvidenceError("CBOR: an array or map is longer than what holds it, or a simple value stands there")


def _map(cursor: Cursor, size: int, depth: int) -> dict[str | int, Value]:
    found: dict[str | int, Value] = {}
    for _ in range(size):
        key = _value(cursor, depth - 1)
        if not isinstance(key, str | int) or key in found:
            raise MalformedEvidenceError("CBOR: a key of a map is no text or number, or stands twice")
        found[key] = _value(cursor, depth - 1)
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedEvidenceError("CBOR: a text string is not UTF-8") from None
