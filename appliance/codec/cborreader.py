"""Just enough CBOR (RFC 8949) for evidence in certificates and for receipts: definite lengths,
shortest forms, nothing after the end.

Integers, byte and text strings, arrays, maps with text or integer keys, and tags. No floats, no
indefinite lengths. Documents of AWS's Nitro have maps of indefinite length and members that are
null: `members` reads those.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.codec.cbor import ARRAY, BYTES, MAP, NEGATIVE, TAG, TEXT, UNSIGNED
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

MAX_DEPTH, MAX_MEMBERS = 8, 64
_INDEFINITE_MAP, _BREAK, _NULL = 0xBF, 0xFF, 0xF6


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


def members(data: bytes) -> dict[str | int, Value]:
    """The one map that `data` is, of definite or indefinite length, without its members that are
    null. Values inside of it may be such maps. Raises MalformedEvidenceError on anything else."""
    cursor = Cursor(data, "CBOR", "big")
    found = _loose(cursor, MAX_DEPTH)
    cursor.end()
    if not isinstance(found, dict):
        raise MalformedEvidenceError("CBOR: it is not a map")
    return found


def _loose(cursor: Cursor, depth: int) -> Value:
    head = cursor.ahead()
    if not depth or head is None or (head != _INDEFINITE_MAP and head >> 5 != MAP):
        return _value(cursor, depth)
    cursor.take(1, "head")
    size = None if head == _INDEFINITE_MAP else _argument(cursor, head & 0x1F)
    found: dict[str | int, Value] = {}
    seen: set[str | int] = set()
    while len(seen) != size and not (size is None and cursor.ahead() == _BREAK):
        key = _value(cursor, depth - 1)
        if not isinstance(key, str | int) or key in seen or len(seen) == MAX_MEMBERS:
            raise MalformedEvidenceError("CBOR: a key of a map is not text or a number, stands twice, or is one too "
                                         "many")
        seen.add(key)
        if cursor.ahead() == _NULL:
            cursor.take(1, "null")
        else:
            found[key] = _loose(cursor, depth - 1)
    if size is None:
        cursor.take(1, "break")
    return found


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
