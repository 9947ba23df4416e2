"""GGUF: the container of metadata and tensors that llama.cpp's models come in. One pass, nothing
trusted.

    magic "GGUF" | version u32 | tensor count u64 | key count u64
    per key:      name string | type u32 | value
    per tensor:   name string | dimension count u32 | dimensions u64 each, fastest first | format u32 | offset u64
    padding to the alignment | tensor data, each tensor at its offset from here

All integers are little-endian; a string is a u64 length and that many bytes of UTF-8; an array is a
type u32, a length u64 and its items. Source: `docs/gguf.md` of ggml, and `gguf.cpp` where that is
silent. Versions 2 and 3 are laid out alike (3 allowed big-endian files, refused here). Memory stays
in proportion to the header: see `metadata` for how arrays are kept, and the limits below for what
each entry may cost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from appliance.codec import filekind
from appliance.errors import FormatError, UnsupportedError
from appliance.models.file import quants
from appliance.models.file.cursor import Buffer, HeaderCursor, malformed, mistaken
from appliance.models.file.metadata import Metadata, Numbers, Strings, Value, describe

Judge = Callable[[Metadata], None]
"""Raises what is wrong with a file, by its metadata."""
Parse = Callable[[Buffer, int], "GGUFFile"]
"""The header in the first bytes of a file of so many bytes, as `parse` finds it."""

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32  # bytes
MAX_ALIGNMENT = 65536  # bytes
MAX_KEYS = 65536
MAX_TENSORS = 65536
MAX_KEY_NBYTES = 65535  # the format's own limit
MAX_TENSOR_NAME_NBYTES = 63  # ggml's own limit
MAX_TEXT_NBYTES = 16 << 20  # a chat template is a few KiB
MAX_STRINGS = 1 << 21  # of all arrays together; the largest vocabularies have under 2^19 tokens, and as many merges
MAX_DIMENSIONS = 4
MAX_HEADER_NBYTES = 64 << 20  # the largest vocabularies and their merges take under 20 MiB

_FIRST_NBYTES = 16 << 20  # headers hold a vocabulary: a few MiB

_KEY_MIN_NBYTES = 8 + 1 + 4 + 1  # a name of one byte and a value of one
_TENSOR_MIN_NBYTES = 8 + 1 + 4 + 8 + 4 + 8  # a name of one byte and one dimension
_SEALED = b"appliance/sealed-model/"  # as `sealed_header` has it, which stands above
_MAGICS_BEFORE = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # as they lie in the file

_ZEROS = "the file begins with zeros: its download has not ended, or its disk lost it; fetch it again"
_UNKNOWN = "this is not a GGUF file, and of no kind that is known here"

_BOOL, _STRING, _ARRAY = 7, 8, 9
# type number -> numpy type; the scalars, and the items of arrays
_NUMBERS: Mapping[int, np.dtype[np.generic]] = MappingProxyType({number: np.dtype(name) for number, name in (
    (0, "u1"), (1, "i1"), (2, "<u2"), (3, "<i2"), (4, "<u4"), (5, "<i4"), (6, "<f4"), (_BOOL, "u1"), (10, "<u8"),
    (11, "<i8"), (12, "<f8"))})
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` with the slowest dimension first, so (rows, columns) for a matrix."""

    name: str
    format: quants.BlockFormat
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int

    @property
    def columns(self) -> int:
        """Weights per row."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Number of rows over all slower dimensions; 1 for a vector."""
        return self.nbytes // self.format.row_nbytes(self.columns)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The header of a GGUF file; tensor data stays where it is."""

    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]  # in the order of the file's table
    alignment: int  # bytes
    data_offset: int  # bytes from the start of the file


def parse(buffer: Buffer, size: int | None = None, *, any_format: bool = False,
          judge: Judge | None = None) -> GGUFFile:
    """Read the header of a file from `buffer`, its first bytes; `size` is the file's size, by
    default the buffer's. `any_format`: tensors may be in formats that do not run here. `judge` sees
    the metadata before the tensors are read, so that what it raises comes before what is wrong with
    them.

    Raises FormatError for malformed bytes, UnsupportedError for what is well formed and does not
    run here; both name the offset, what was found and what is allowed.
    """
    cursor = HeaderCursor(buffer)
    version = _version(cursor)
    tensor_count = _count(cursor, "the number of tensors", MAX_TENSORS, _TENSOR_MIN_NBYTES)
    key_count = _count(cursor, "the number of metadata keys", MAX_KEYS, _KEY_MIN_NBYTES)
    values, alignment = _metadata(cursor, key_count)
    if judge is not None:
        judge(MappingProxyType(values))
    size = cursor.size if size is None else size
    entries = _entries(cursor, tensor_count, alignment, any_format=any_format)
    data_offset = cursor.offset + -cursor.offset % alignment
    tensors = _place(entries, data_offset, size)
    return GGUFFile(version, MappingProxyType(values), MappingProxyType(tensors), alignment, data_offset)


def keys(buffer: Buffer) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each key in a header, and its bytes from the name to the value's end.
    Errors as `parse`."""
    cursor = HeaderCursor(buffer)
    _version(cursor)
    cursor.u64("the number of tensors")
    for number in range(_count(cursor, "the number of metadata keys", MAX_KEYS, _KEY_MIN_NBYTES)):
        start = cursor.offset
        key = _name(cursor, f"the name of key {number}", MAX_KEY_NBYTES, ())
        _value(cursor, cursor.u32(f"the type of {key[:80]!r}"), cursor.offset - 4, repr(key[:80]), MAX_STRINGS)
        yield key, bytes(memoryview(buffer)[start:cursor.offset])


def read(read_into: Callable[[memoryview, int], None], size: int,
         parse: Parse = parse) -> tuple[bytearray, GGUFFile]:
    """Read the first bytes of a file of `size` bytes, and the header in them. Four times more are
    read each time that they do not suffice, but no more than a header may have. A file without a
    header would else be read to its end. `read_into` fills a view from an offset on, and no byte
    twice. Errors as `parse`."""
    buffer, most = bytearray(), min(size, MAX_HEADER_NBYTES)
    while True:
        before, start = buffer, len(buffer)
        buffer = bytearray(min(most, max(_FIRST_NBYTES, 4 * start)))
        buffer[:start] = before
        before[:] = bytes(start)  # its end may be weights
        with memoryview(buffer)[start:] as view:
            read_into(view, start)
        try:
            return buffer, parse(buffer, size)
        except FormatError:
            if len(buffer) == most:
                raise


def _version(cursor: HeaderCursor) -> int:
    """Check magic and version."""
    magic = bytes(cursor.take(min(4, cursor.remaining), "the magic"))
    if magic in _MAGICS_BEFORE:
        raise UnsupportedError("byte 0: the file is in GGML's format from before GGUF; supported: GGUF 2 and 3",
                               hint="take a GGUF file of the model, or convert its original weights with llama.cpp's "
                                    "conversion scripts")
    if magic != MAGIC:
        start = magic + bytes(cursor.peek()[:filekind.LOOKED_AT])
        if start.startswith(_SEALED):
            raise FormatError("byte 0: a sealed model; needed: a GGUF file",
                              hint="unseal it; in a policy, pin its header: sealed_header_sha256")
        raise mistaken(start, "a GGUF file") or malformed(0, "the magic", repr(magic), repr(MAGIC),
                                                          hint=_UNKNOWN if any(start) else _ZEROS)
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedError("byte 4: the file is big-endian; supported: little-endian GGUF 2 and 3",
                               hint="convert it with gguf-convert-endian")
    if version == 1:
        raise UnsupportedError("byte 4: the file is GGUF version 1; supported: 2 and 3",
                               hint="convert the model again with a current llama.cpp")
    if version not in VERSIONS:
        raise malformed(4, "the version", version, "2 and 3")
    return version


def _count(cursor: HeaderCursor, what: str, limit: int, each: int) -> int:
    """Return a number of entries that take at least `each` bytes."""
    start = cursor.offset
    count = cursor.u64(what)
    allowed = min(limit, cursor.remaining // each)
    if count > allowed:
        raise malformed(start, what, count, f"at most {allowed} ({cursor.remaining} bytes remain)")
    return count


def _name(cursor: HeaderCursor, what: str, limit: int, known: Container[str]) -> str:
    """Return a name of at most `limit` bytes, not empty and not among those before it."""
    start = cursor.offset
    name = cursor.text(what, limit)
    if not name:
        raise malformed(start, what, "empty", "a name")
    if name in known:
        raise malformed(start, what, f"{name[:80]!r} again", "each name once")
    return name


def _metadata(cursor: HeaderCursor, count: int) -> tuple[dict[str, Value], int]:
    """Read the key-value pairs; return them and the alignment, which one of them may set."""
    values: dict[str, Value] = {}
    alignment, strings = DEFAULT_ALIGNMENT, MAX_STRINGS
    for number in range(count):
        key = _name(cursor, f"the name of key {number}", MAX_KEY_NBYTES, values)
        kind_offset = cursor.offset
        kind = cursor.u32(f"the type of {key[:80]!r}")
        values[key] = value = _value(cursor, kind, kind_offset, repr(key[:80]), strings)
        strings -= len(value) if isinstance(value, Strings) else 0
        if key == "general.alignment":
            alignment = _alignment(kind_offset, kind, value)
    return values, alignment


def _alignment(offset: int, kind: int, value: Value) -> int:
    valid = kind == 4 and isinstance(value, int) and 8 <= value <= MAX_ALIGNMENT and value & (value - 1) == 0
    if not valid:
        raise malformed(offset, "'general.alignment'", describe(value),
                        f"a uint32 power of two from 8 to {MAX_ALIGNMENT}")
    return int(value)  # type: ignore[arg-type]


def _value(cursor: HeaderCursor, kind: int, kind_offset: int, what: str, strings: int) -> Value:
    """One value of type `kind`; if it is an array, of `strings` strings at most."""
    if kind == _STRING:
        return cursor.text(what, MAX_TEXT_NBYTES)
    if kind == _ARRAY:
        return _array(cursor, what, strings)
    if kind not in _NUMBERS:
        raise malformed(kind_offset, f"the type of {what}", kind, "0 to 12")
    start = cursor.offset
    value: int | float = np.frombuffer(cursor.take(_NUMBERS[kind].itemsize, what), _NUMBERS[kind])[0].item()
    if kind == _BOOL and value not in (0, 1):
        raise malformed(start, f"the boolean {what}", value, "0 and 1")
    return bool(value) if kind == _BOOL else value


def _array(cursor: HeaderCursor, what: str, strings: int) -> Numbers | Strings:
    """One array, its items compact: numpy for numbers, `Strings` for strings."""
    start = cursor.offset
    kind = cursor.u32(f"the item type of {what}")
    count_offset = cursor.offset
    count = cursor.u64(f"the length of {what}")
    if kind == _STRING:
        return _strings(cursor, count_offset, count, what, strings)
    if kind == _ARRAY:
        raise UnsupportedError(f"byte {start}: {what} is an array of arrays; supported: arrays of numbers, booleans "
                               "and strings", hint="nothing that runs here needs one: write the file without this key")
    if kind not in _NUMBERS:
        raise malformed(start, f"the item type of {what}", kind, "numbers, booleans and strings")
    dtype = _NUMBERS[kind]
    items_offset = cursor.offset
    if count > cursor.remaining // dtype.itemsize:
        raise malformed(count_offset, f"the length of {what}", f"{count} items of {dtype.itemsize} bytes",
                        f"at most the {cursor.remaining} bytes that remain")
    items = np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype).copy()
    if kind == _BOOL:
        if count and int(items.max()) > 1:
            bad = int(np.argmax(items > 1))
            raise malformed(items_offset + bad, f"a boolean of {what}", int(items[bad]), "0 and 1")
        items = items.view(np.bool_)
    items.flags.writeable = False
    return items


def _strings(cursor: HeaderCursor, count_offset: int, count: int, what: str, most: int) -> Strings:
    """Return an array of strings: each is checked to be UTF-8, then they stay bytes with their
    starts and ends."""
    allowed = min(most, cursor.remaining // _LENGTH.size)
    if count > allowed:
        raise malformed(count_offset, f"the length of {what}", count,
                        f"at most {allowed} strings ({cursor.remaining} bytes remain)")
    base = cursor.offset
    rest = cursor.peek()
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    at, size, unpack = 0, len(rest), _LENGTH.unpack_from
    for index in range(count):  # a loop over a whole vocabulary: no call per item beyond what is needed
        begin = at + 8
        end = begin + unpack(rest, at)[0] if begin <= size else size + 1
        if end > size:
            raise malformed(base + at, f"the size of string {index} of {what}", "past the end of the file",
                            f"at most the {max(size - begin, 0)} bytes that remain")
        try:
            str(rest[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise malformed(base + begin + error.start, f"string {index} of {what}", f"not UTF-8 ({error.reason})",
                            "valid UTF-8") from None
        starts[index], ends[index] = begin, end
        at = end
    return Strings(bytes(cursor.take(at, what)), starts, ends)


# A tensor as the table has it, its offset from the start of the tensor data; and where the table
# says that.
_Entry = tuple[TensorInfo, int]


def _entries(cursor: HeaderCursor, count: int, alignment: int, *, any_format: bool) -> dict[str, _Entry]:
    """Read the tensor table."""
    entries: dict[str, _Entry] = {}
    for number in range(count):
        name = _name(cursor, f"the name of tensor {number}", MAX_TENSOR_NAME_NBYTES, entries)
        entries[name] = _entry(cursor, name, alignment, any_format=any_format)
    return entries


def _entry(cursor: HeaderCursor, name: str, alignment: int, *, any_format: bool) -> _Entry:
    start = cursor.offset
    what = f"tensor {name!r}"
    dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise malformed(start, f"the number of dimensions of {what}", dimensions, f"1 to {MAX_DIMENSIONS}")
    shape: list[int] = []
    for _ in range(dimensions):
        at = cursor.offset
        shape.append(cursor.u64(f"a dimension of {what}"))
        if shape[-1] == 0:
            raise malformed(at, f"a dimension of {what}", 0, "1 and more")
    number = cursor.u32(f"the format of {what}")
    block_format = quants.by_id(number, f"byte {cursor.offset - 4}: {what}", any_format=any_format)
    if shape[0] % block_format.elements:
        raise malformed(start + 4, f"the row length of {what}", shape[0],
                        f"a multiple of {block_format.elements} for {block_format.name}")
    nbytes = block_format.row_nbytes(shape[0])
    for rows in shape[1:]:
        nbytes *= rows  # at most four factors of 64 bits: exact in Python
    offset_at = cursor.offset
    offset = cursor.u64(f"the offset of {what}")
    if offset % alignment:
        raise malformed(offset_at, f"the offset of {what}", offset, f"a multiple of {alignment}")
    return TensorInfo(name, block_format, tuple(reversed(shape)), offset, nbytes), offset_at


def _place(entries: Mapping[str, _Entry], data_offset: int, size: int) -> dict[str, TensorInfo]:
    """Check that tensors lie within the file and apart from each other; give them offsets from the
    file's start."""
    whole = data_offset + max((info.offset + info.nbytes for info, _ in entries.values()), default=0)
    end, before = 0, "the header"
    for info, offset_at in sorted(entries.values(), key=lambda entry: entry[0].offset):
        if info.offset < end:
            raise malformed(offset_at, f"the offset of tensor {info.name!r}", info.offset,
                            f"{end} and more, where {before} ends: tensors may not overlap")
        end, before = info.offset + info.nbytes, f"tensor {info.name!r}"
        if data_offset + end > size:
            raise malformed(offset_at, f"the end of tensor {info.name!r}", f"byte {data_offset + end}",
                            f"at most {size}, the size of the file: {whole - size} bytes are missing",
                            hint="the file is cut short: its download has not ended, or broke off; fetch it again")
    return {name: replace(info, offset=data_offset + info.offset) for name, (info, _) in entries.items()}
