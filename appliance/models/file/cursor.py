"""A bounds-checked cursor over bytes that nobody has vouched for.

Every length is checked against the bytes that remain before anything is sliced or allocated, so the
cost of a lie about a length is one error. Offsets in errors are absolute: byte 0 is the first byte
of the buffer.
"""

from __future__ import annotations

import mmap

from appliance.codec import filekind
from appliance.errors import FormatError

Buffer = bytes | bytearray | memoryview | mmap.mmap


_DAMAGED = "the file is cut short, damaged, or not written by a GGUF tool; fetch it again and check its SHA-256"


def malformed(offset: int, what: str, found: object, allowed: object, hint: str = _DAMAGED) -> FormatError:
    """Return the error for bytes at `offset`: `what` they should be, what was found, what is
    allowed."""
    return FormatError(f"byte {offset}: {what} is {found}; allowed: {allowed}", hint=hint)


def mistaken(start: bytes, needed: str) -> FormatError | None:
    """Return the error for a file that begins so and is of another kind, where that is known:
    nobody damaged it."""
    kind = filekind.instead_of_model(start)
    return None if kind is None else FormatError(f"byte 0: this is {kind.what}; needed: {needed}", hint=kind.use)


class HeaderCursor:
    """Reads little-endian values from `buffer`, front to back."""

    __slots__ = ("_view", "offset", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._view = memoryview(buffer).cast("B")
        self.size = len(self._view)  # bytes
        self.offset = 0  # bytes read so far

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self.size - self.offset

    def demand(self, nbytes: int, what: str) -> None:
        """Refuse with FormatError unless `nbytes` more bytes exist."""
        if not 0 <= nbytes <= self.remaining:
            raise malformed(self.offset, f"the size of {what}", f"{nbytes} bytes",
                            f"at most the {self.remaining} bytes that remain")

    def take(self, nbytes: int, what: str) -> memoryview:
        """Return the next `nbytes` bytes, not copied."""
        self.demand(nbytes, what)
        start = self.offset
        self.offset = start + nbytes
        return self._view[start:self.offset]

    def peek(self) -> memoryview:
        """Return all bytes not read yet, without reading them."""
        return self._view[self.offset:]

    def u32(self, what: str) -> int:
        """Return the next unsigned 32-bit integer."""
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        """Return the next unsigned 64-bit integer."""
        return int.from_bytes(self.take(8, what), "little")

    def text(self, what: str, limit: int) -> str:
        """Return the next string: a 64-bit length, then that many bytes of UTF-8, at most
        `limit`."""
        start = self.offset
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise malformed(start, f"the length of {what}", f"{length} bytes", f"at most {limit}")
        data = self.take(length, what)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise malformed(start + 8 + error.start, what, f"not UTF-8 ({error.reason})", "valid UTF-8") from None
