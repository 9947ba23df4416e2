"""Where requests begin and end on a connection, by the letter of RFC 9112, before h11 reads them.

Two readers that disagree about a request's end can be made to see two different requests (request
smuggling). h11 takes bare line feeds, folded headers and control characters, as others do not.
Every reader reads alike what passes here: lines end in CRLF, one framing per request, digits where
digits belong. A body in chunks goes on in fewer and larger ones, so that a chunk of one byte costs
little more than its bytes.
"""

from __future__ import annotations

import enum
import re

from appliance.api.problems import RequestError

HEAD_LIMIT = 16 * 1024
LINE_BYTES = 1024           # of a chunk's size and extensions, or of a trailer
PIECES = 512                # chunks that are read at once: others wait meanwhile
FREE_BYTES, SHARE = 64 * 1024, 8  # of a body's framing: so many, and one for each SHARE bytes of data
DRAINED_BYTES = 64 * 1024   # of an unread body that are read to keep the connection

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_REQUEST_LINE = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/1\.([0-9])")
_FIELD = re.compile(_TOKEN + rb":" + _TEXT)
_STRAY = re.compile(rb"\x00|\r(?!\n|\Z)|(?<!\r)\n")  # bytes on which readers disagree
_PLAIN_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*+"'
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[ \t]*+" + _TOKEN + rb"(?:[ \t]*+=[ \t]*+(?:" + _TOKEN + rb"|"
                        + _QUOTED + rb"))?+)*+")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_FIRST = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class _At(enum.Enum):
    """The part that comes next on a connection."""

    HEAD = enum.auto()
    LENGTH = enum.auto()   # bytes of a body whose length is known
    CHUNKS = enum.auto()
    TRAILER = enum.auto()


class Framing:
    """One connection's bytes: `feed` what arrived, `take` what is sound."""

    def __init__(self, head_bytes: int = HEAD_LIMIT) -> None:
        """`head_bytes`: the longest head, with its request line."""
        self.held = bytearray()  # that arrived and were not taken
        self.error: RequestError | None = None  # once there is one, nothing more is taken
        self._head_bytes = head_bytes
        self._at = _At.HEAD
        self._scanned = 0        # bytes of a head in which nothing stray is
        self._skipped = False    # an empty line before the head
        self._left = 0           # bytes of a body, or of a chunk
        self._ends = False       # a chunk's data is complete, its CRLF is not
        self._read = bytearray()  # data of chunks that was not handed on
        self.more = False        # there is more of it than was read at once: `take` goes on with that
        self._data = self._framing = 0  # bytes of a body in chunks, and of what is around them
        self._expects = False    # the client waits for "100 Continue"

    @property
    def between(self) -> bool:
        """Whether the next byte begins a request."""
        return self._at is _At.HEAD

    @property
    def ends_connection(self) -> bool:
        """Whether the connection ends with the answer that is due: what is unread of the request is
        unsound, long, of unknown length, or may never come."""
        return (self.error is not None or self._at in (_At.CHUNKS, _At.TRAILER)
                or (self._at is _At.LENGTH and (self._expects or self._left > DRAINED_BYTES)))

    def feed(self, data: bytes) -> None:
        """Append what arrived."""
        self.held += data

    def take(self) -> bytes:
        """Return the next whole head, or the part of a body that is here; nothing where more must
        come, or where there is `more`. RequestError, kept as `error`, for what is not sound."""
        try:
            if self._at is _At.HEAD:
                return self._take_head()
            if self._at is _At.LENGTH:
                return self._take_counted()
            data = self._take_chunks() if self._at is _At.CHUNKS else b""
            return data if data or self.more else (self._take_trailer() if self._at is _At.TRAILER else b"")
        except RequestError as error:
            self.error, self.more = error, False
            self.held.clear()
            self._read.clear()
            raise

    def _take_head(self) -> bytes:
        if not self._skipped and self.held.startswith(b"\r\n"):  # RFC 9112 §2.2
            del self.held[:2]
            self._skipped = True
        if self.held and self.held[0] not in _FIRST and self.held != b"\r":
            raise _malformed("the request line does not begin with a method")
        end = self.held.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if _STRAY.search(self.held, max(0, self._scanned - 1), len(self.held) if end < 0 else end + 2):
            raise _malformed("a line of the head does not end in CRLF, or has a NUL or CR in it")
        self._scanned = len(self.held)
        if (self._scanned if end < 0 else end) > self._head_bytes:
            raise RequestError("headers_too_large")
        if end < 0:
            return b""
        head = bytes(self.held[:end + 4])
        del self.held[:end + 4]
        self._scanned, self._skipped = 0, False
        self._frame(head[:-4].split(b"\r\n"))
        return head

    def _frame(self, lines: list[bytes]) -> None:
        """Choose the one way in which the body of a head's `lines` is framed (RFC 9112 §6)."""
        request = _REQUEST_LINE.fullmatch(lines[0])
        if request is None:
            raise _malformed("the first line is not 'METHOD TARGET HTTP/1.1'")
        fields = _fields(lines[1:])
        codings, lengths = fields.get(b"transfer-encoding"), fields.get(b"content-length")
        if codings is not None and lengths is not None:
            raise _malformed("Content-Length stands beside Transfer-Encoding: send one of them")
        if codings is not None:
            if [coding.lower() for coding in codings] != [b"chunked"]:
                raise _malformed("Transfer-Encoding: allowed is 'chunked', once")
            if request[1] == b"0":
                raise _malformed("Transfer-Encoding needs HTTP/1.1")
            self._at, self._left, self._ends, self._data, self._framing = _At.CHUNKS, 0, False, 0, 0
        elif lengths is not None:
            self._left = _length(lengths)
            self._at = _At.LENGTH if self._left else _At.HEAD
        self._expects = any(b"100-continue" in value.lower() for value in fields.get(b"expect", ()))

    def _take_counted(self) -> bytes:
        data = bytes(self.held[:self._left])
        del self.held[:self._left]
        self._left -= len(data)
        if data:
            self._expects = False
        if not self._left:
            self._at = _At.HEAD
        return data

    def _take_chunks(self) -> bytes:
        """Return all data that is here, as one chunk; nothing yet where it is in many pieces."""
        held, place, parts = self.held, 0, list[bytearray]()
        while self._at is _At.CHUNKS and place < len(held) and len(parts) < PIECES:
            if self._left:
                parts.append(held[place:place + self._left])
                place += len(parts[-1])
                self._left -= len(parts[-1])
                self._ends = not self._left
            elif self._ends:
                end = held[place:place + 2]
                if not b"\r\n".startswith(end):
                    raise _malformed("a chunk is longer than its size")
                if len(end) < 2:
                    break
                place, self._ends = place + 2, False
            elif whole := self._whole_chunks(place, parts):
                place = whole
            elif not (size := self._size(place)):
                break
            else:
                place += size
        del held[:place]
        self._read += b"".join(parts)
        self.more = len(parts) >= PIECES
        if self.more:
            return b""
        data, self._read = bytes(self._read), bytearray()
        return b"%x\r\n%b\r\n" % (len(data), data) if data else b""

    def _whole_chunks(self, place: int, parts: list[bytearray]) -> int:
        """Append the data of all chunks from `place` on that are here to their ends, without
        extensions, as long as there are few parts. Returns where they end; 0: there is none."""
        held, begin = self.held, place
        while len(parts) < PIECES and (match := _PLAIN_SIZE.match(held, place)) is not None:
            start = match.end()
            end = start + int(match[1], 16)
            if end == start or held[end:end + 2] != b"\r\n":
                break
            parts.append(held[start:end])
            self._data += end - start
            self._framing += start - place + 2
            place = end + 2
        if place > begin:
            self._expects = False
            self._spend(0)
        return place if place > begin else 0

    def _size(self, place: int) -> int:
        """Read the line before a chunk, and return its length; 0: it is not all here."""
        line = self._line(place)
        if line is None:
            return 0
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise _malformed("a chunk's size is not a number of up to 15 hexadecimal digits, or its extensions are not "
                             "valid")
        self._left = int(match[1], 16)
        self._data += self._left
        self._expects = False
        self._spend(len(line) + 4)
        if not self._left:
            self._at = _At.TRAILER
        return len(line) + 2

    def _take_trailer(self) -> bytes:
        """Return the end of a body in chunks. Fields of a trailer are checked and dropped."""
        while (line := self._line(0)) is not None:
            del self.held[:len(line) + 2]
            self._spend(len(line) + 2)
            if not line:
                self._at = _At.HEAD
                return b"0\r\n\r\n"
            if _FIELD.fullmatch(line) is None:
                raise _malformed("a line of the trailer is not 'NAME: VALUE'")
        return b""

    def _line(self, place: int) -> bytes | None:
        """Return a line without its CRLF; None: it is not all here."""
        end = self.held.find(b"\r\n", place, place + LINE_BYTES)
        until = end + 2 if end >= 0 else min(len(self.held), place + LINE_BYTES)
        if _STRAY.search(self.held, place, until):
            raise _malformed("a line of the body's framing does not end in CRLF, or has a NUL or CR in it")
        if end < 0 and len(self.held) - place >= LINE_BYTES:
            raise _malformed(f"a line of the body's framing is longer than {LINE_BYTES} bytes")
        return None if end < 0 else bytes(self.held[place:end])

    def _spend(self, nbytes: int) -> None:
        """Count bytes of framing. (`_data` may run ahead by one chunk, whose bytes are counted as
        they are read.)"""
        self._framing += nbytes
        if self._framing > FREE_BYTES + (self._data - self._left) // SHARE:
            raise RequestError("body_too_large", f"the body comes in too many pieces: what frames its chunks may take "
                               f"{FREE_BYTES >> 10} KiB and a byte for each {SHARE} of data")


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    """Header fields by name in lower case."""
    fields: dict[bytes, list[bytes]] = {}
    for line in lines:
        if _FIELD.fullmatch(line) is None:
            raise _malformed("a header is not 'NAME: VALUE' on one line, without a space before the colon")
        name, _, value = line.partition(b":")
        fields.setdefault(name.lower(), []).append(value.strip(b" \t"))
    return fields


def _length(values: list[bytes]) -> int:
    """Return the one length that all values of Content-Length give."""
    lengths = {length.strip(b" \t") for value in values for length in value.split(b",")}
    if len(lengths) > 1:
        raise _malformed("Content-Length is given twice, with different values")
    length, = lengths
    if _LENGTH.fullmatch(length) is None:
        raise _malformed("Content-Length is not a number of up to 18 digits")
    return int(length)


def _malformed(message: str) -> RequestError:
    return RequestError("malformed_request", f"the request is not valid HTTP: {message}")
