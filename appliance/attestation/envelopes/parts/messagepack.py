"""Values in MessagePack, as Rust's `rmp` writes them: lengths and numbers in their shortest form.

Unsigned integers, text, bytes, lists, maps with text as keys, booleans, and nil. Floats, negative
numbers and extensions are refused, since no envelope has them.
"""

from __future__ import annotations

from typing import Any

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

MAX_DEPTH, MAX_VALUES = 8, 1 << 17
_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
# First byte of a kind whose length or number follows: the number of bytes of that.
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
# The largest value that the form before it holds.
_BELOW_TEXT, _BELOW_LIST, _BELOW_NUMBER, _BELOW_BYTES = 31, 15, 127, -1


def read(data: bytes) -> tuple[Any, bytes]:
    """Read the one value that `data` begins with, and the bytes behind it. Raises
    MalformedEvidenceError on more than MAX_DEPTH levels or MAX_VALUES values."""
    reader = _Reader(data)
    value = reader.value(MAX_DEPTH)
    return value, data[reader.cursor.at:]


class _Reader:
    """Reads values from front to back, and counts them."""

    def __init__(self, data: bytes) -> None:
        self.cursor = Cursor(data, "MessagePack", "big")
        self._left = MAX_VALUES

    def value(self, depth: int) -> Any:
        """Read one value of at most `depth` levels."""
        self._left -= 1
        if not depth or self._left < 0:
            raise MalformedEvidenceError(f"MessagePack: more than {MAX_DEPTH} levels, or more than {MAX_VALUES} values")
        head = self.cursor.number(1, "head")
        if head < 0x80:
            return head
        if head < 0xC0:
            return self._short(head, depth)
        if head in (_NIL, _FALSE, _TRUE):
            return None if head == _NIL else head == _TRUE
        return self._long(head, depth)

    def _short(self, head: int, depth: int) -> Any:
        """A map, a list or a text whose length stands in its first byte."""
        if head < 0x90:
            return self._map(head & 15, depth)
        return self._list(head & 15, depth) if head < 0xA0 else self._text(head & 31)

    def _long(self, head: int, depth: int) -> Any:
        """A value whose length, or which itself, stands behind its first byte."""
        if head in _NUMBERS:
            return self._argument(_NUMBERS[head], 1, _BELOW_NUMBER)
        if head in _BYTES:
            return self.cursor.take(self._argument(_BYTES[head], 1, _BELOW_BYTES), "bytes")
        if head in _TEXTS:
            return self._text(self._argument(_TEXTS[head], 1, _BELOW_TEXT))
        if head in _LISTS:
            return self._list(self._argument(_LISTS[head], 2, _BELOW_LIST), depth)
        if head in _MAPS:
            return self._map(self._argument(_MAPS[head], 2, _BELOW_LIST), depth)
        raise MalformedEvidenceError(f"MessagePack: a value of kind {head:#04x}, which no envelope has")

    def _argument(self, width: int, narrowest: int, below: int) -> int:
        """A number of `width` bytes that does not fit in a shorter form: less than `narrowest`
        bytes hold at most `below`."""
        number = self.cursor.number(width, "length or number")
        if number <= (below if width == narrowest else (1 << 4 * width) - 1):
            raise MalformedEvidenceError("MessagePack: a length or number is not in its shortest form")
        return number

    def _text(self, size: int) -> str:
        try:
            return self.cursor.take(size, "text").decode()
        except UnicodeDecodeError:
            raise MalformedEvidenceError("MessagePack: a text is not UTF-8") from None

    def _list(self, size: int, depth: int) -> list[Any]:
        if size > self.cursor.left:
            raise MalformedEvidenceError("MessagePack: a list is longer than what holds it")
        return [self.value(depth - 1) for _ in range(size)]

    def _map(self, size: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(size):
            key = self.value(depth - 1)
            if not isinstance(key, str) or key in found:
                raise MalformedEvidenceError("MessagePack: a key of a map is not text, or stands twice")
            found[key] = self.value(depth - 1)
        return found
