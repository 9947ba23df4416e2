"""Protocol buffers as bytes: the wire format, within bounds.

Source: protobuf.dev, "Encoding". Groups and unknown wire types are refused, and so is a field that
stands twice where there is one of it. Fields that a message does not know are passed over.
"""

from __future__ import annotations

from appliance.errors import MalformedEvidenceError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_FIELDS, MAX_VARINT_BYTES, MAX_FIELD_NUMBER = 1024, 10, (1 << 29) - 1


class Message:
    """The fields of a message by number, in their order."""

    def __init__(self, data: bytes, what: str) -> None:
        self.what = what
        self._data, self._at = data, 0
        self._fields: dict[int, list[int | bytes]] = {}
        count = 0
        while self._at < len(data):
            count += 1
            if count > MAX_FIELDS:
                raise self.malformed(f"more than {MAX_FIELDS} fields")
            self._field()

    def malformed(self, found: str) -> MalformedEvidenceError:
        """The error for something in this message."""
        return MalformedEvidenceError(f"{self.what}: {found}", code="gce-endorsement-malformed")

    def _field(self) -> None:
        tag = self._varint()
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= MAX_FIELD_NUMBER:
            raise self.malformed(f"field number {number}, expected 1 to {MAX_FIELD_NUMBER}")
        value: int | bytes
        if kind == VARINT:
            value = self._varint()
        elif kind == LENGTH:
            value = self._take(self._varint())
        elif kind in (FIXED64, FIXED32):
            value = self._take(8 if kind == FIXED64 else 4)
        else:
            raise self.malformed(f"field {number} has wire type {kind}, expected 0, 1, 2 or 5")
        self._fields.setdefault(number, []).append(value)

    def _take(self, size: int) -> bytes:
        found = self._data[self._at:self._at + size]
        if len(found) != size:
            raise self.malformed(f"cut off: {size} bytes announced, {len(found)} there")
        self._at += size
        return found

    def _varint(self) -> int:
        value = 0
        for place in range(MAX_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return value
        raise self.malformed("a number of more than 64 bits")

    def number(self, field: int, most: int = (1 << 32) - 1) -> int:
        """Return a number; 0 if the field is absent, which is how its zero is written."""
        value = self._one(field)
        if value is None:
            return 0
        if not isinstance(value, int) or value > most:
            raise self.malformed(f"field {field} is not a number of at most {most}")
        return value

    def content(self, field: int, size: int | None = None) -> bytes:
        """Return bytes, of `size` if it is given; none if the field is absent."""
        value = self._one(field)
        if value is None:
            value = b""
        if not isinstance(value, bytes) or (size is not None and len(value) != size):
            raise self.malformed(f"field {field} is not {'bytes' if size is None else f'{size} bytes'}")
        return value

    def messages(self, field: int, what: str) -> list[Message]:
        """Return the messages in a field, which may stand any number of times."""
        found = self._fields.get(field, [])
        if not all(isinstance(each, bytes) for each in found):
            raise self.malformed(f"field {field} is not a message")
        return [Message(each, what) for each in found if isinstance(each, bytes)]

    def message(self, field: int, what: str) -> Message | None:
        """Return the message in a field that stands once or not."""
        found = self.messages(field, what)
        if len(found) > 1:
            raise self.malformed(f"field {field} stands {len(found)} times")
        return found[0] if found else None

    def _one(self, field: int) -> int | bytes | None:
        found = self._fields.get(field, [])
        if len(found) > 1:
            raise self.malformed(f"field {field} stands {len(found)} times")
        return found[0] if found else None
