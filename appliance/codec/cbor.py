"""Just enough CBOR (RFC 8949) for evidence in certificates: definite lengths, shortest forms,
nothing after the end.

Integers, byte and text strings, arrays, maps with text or integer keys, and tags. No floats, no
indefinite lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

MAX_DEPTH = 8
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)


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


Encoded = int | bytes | str | Sequence["Encoded"] | Mapping[int | str, "Encoded"]


def encode(value: Encoded) -> bytes:
    """The deterministic form (RFC 8949, section 4.2.1) of an integer, a string, or an array or map
    of those."""
    if isinstance(value, int):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    if isinstance(value, Mapping):
        pairs = sorted((encode(key), encode(each)) for key, each in value.items())
        return _head(_MAP, len(pairs)) + b"".join(key + each for key, each in pairs)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        return _head(_TEXT, len(value.encode())) + value.encode()
    return _head(_ARRAY, len(value)) + b"".join(encode(item) for item in value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    width = next(power for power in range(4) if number < 1 << (8 << power))
    return bytes((major << 5 | 24 + width,)) + number.to_bytes(1 << width, "big")


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
    if major == _UNSIGNED:
        return number
    if major == _NEGATIVE:
        return -1 - number
    if major == _BYTES:
        return cursor.take(number, "byte string")
    if major == _TEXT:
        return _text(cursor.take(number, "text string"))
    if major == _TAG:
        return TaggedItem(number, _value(cursor, depth - 1))
    if major == _ARRAY and number <= cursor.left:
        return [_value(cursor, depth - 1) for _ in range(number)]
    if major == _MAP and 2 * number <= cursor.left:
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
