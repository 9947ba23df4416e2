"""Values in SCALE, the encoding of Substrate: little endian, lengths as compact integers in their
shortest form."""

from __future__ import annotations

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

_WIDTHS = (1, 2, 4)
MAX_COUNT = 1 << 14


def compact(cursor: Cursor, field: str) -> int:
    """A compact integer below 2^30: its two lowest bits tell its width."""
    first = cursor.take(1, field)
    mode = first[0] & 3
    if mode == 3:
        raise MalformedEvidenceError(f"SCALE: {field} is 2^30 or more")
    value = int.from_bytes(first + cursor.take(_WIDTHS[mode] - 1, field), "little") >> 2
    if mode and value < 1 << (8 * _WIDTHS[mode - 1] - 2):
        raise MalformedEvidenceError(f"SCALE: {field} is not in its shortest form")
    return value


def count(cursor: Cursor, field: str) -> int:
    """How many items a list has."""
    found = compact(cursor, field)
    if found > MAX_COUNT:
        raise MalformedEvidenceError(f"SCALE: {found} {field}, at most {MAX_COUNT}")
    return found


def octets(cursor: Cursor, field: str) -> bytes:
    """A list of bytes."""
    return cursor.take(compact(cursor, f"size of {field}"), field)


def text(cursor: Cursor, field: str) -> str:
    """Text in UTF-8."""
    try:
        return octets(cursor, field).decode()
    except UnicodeDecodeError:
        raise MalformedEvidenceError(f"SCALE: {field} is not UTF-8") from None
