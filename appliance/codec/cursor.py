"""One bounds-checked reader for the binary formats of evidence."""

from __future__ import annotations

from typing import Literal

from appliance.errors import MalformedEvidenceError

Endian = Literal["little", "big"]


class Cursor:
    """Reads `data` from front to back; each read beyond the end is a MalformedEvidenceError that
    names the field."""

    def __init__(self, data: bytes, what: str, endian: Endian) -> None:
        self._data = data
        self._what = what
        self._endian: Endian = endian
        self.at = 0

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self.at

    def ahead(self) -> int | None:
        """The next byte, which stays unread; None at the end."""
        return self._data[self.at] if self.left else None

    def take(self, size: int, field: str) -> bytes:
        """The next `size` bytes."""
        if size > self.left:
            raise MalformedEvidenceError(
                f"{self._what}: {field} needs {size} bytes at offset {self.at}, {self.left} are left")
        self.at += size
        return self._data[self.at - size:self.at]

    def number(self, size: int, field: str) -> int:
        """An unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size, field), self._endian)

    def sized(self, width: int, field: str) -> bytes:
        """Bytes that a length of `width` bytes stands before."""
        return self.take(self.number(width, f"size of {field}"), field)

    def end(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise MalformedEvidenceError(f"{self._what}: {self.left} bytes too many at offset {self.at}")
