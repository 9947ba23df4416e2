"""The header of a sealed model: its bytes, and the keys that follow from it and the master key.

    offset  bytes
         0     24  magic and version, ASCII: appliance/sealed-model/2
        24      4  tile size in bytes, u32
        28      4  flags, u32: bit 0 = gaps are sealed too; the others are 0
        32      8  size of the GGUF file, u64
        40      8  size n of its header, u64
        48     32  salt
        80     32  SHA-256 of the GGUF file
       112     32  key commitment
       144      n  header of the GGUF file: its first n bytes
     144+n     32  HMAC-SHA-256 of everything before
     176+n         zeros up to a multiple of 4096

Integers are little-endian. The specification, with vectors, is docs/formats/sealed-model.md.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass

from appliance.codec import filekind
from appliance.errors import FormatError, ModelKeyError, TamperedError, UnsupportedError
from appliance.models.file import gguf, tiling
from appliance.models.file.cursor import malformed, mistaken
from appliance.models.file.disk import RandomFile
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.tiling import RECORD_ALIGNMENT, Tiling
from appliance.secure.derivation import hkdf_into
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe

FAMILY = b"appliance/sealed-model/"
MAGIC = FAMILY + b"2"
KEY_NBYTES = SALT_NBYTES = MAC_NBYTES = 32

_FIXED = struct.Struct("<24sIIQQ32s32s32s")
_GAPS = 1


class Keys:
    """The keys of one sealed file, in memory that `wipe` overwrites, or whatever drops them."""

    def __init__(self, master_key: bytes | bytearray | memoryview, salt: bytes, context: bytes) -> None:
        """HKDF-SHA-256 of the master key; `context` is what determines every tile's plaintext."""
        if len(master_key) != KEY_NBYTES:
            raise ModelKeyError(f"the key has {len(master_key)} bytes; needed: {KEY_NBYTES}")
        self.tiles, self.header = SecretBytes(KEY_NBYTES), SecretBytes(KEY_NBYTES)
        commitment = bytearray(KEY_NBYTES)
        for label, out in ((b"tile key", self.tiles), (b"header key", self.header), (b"commitment", commitment)):
            info = MAGIC + b"\n" + label + b"\n" + context
            hkdf_into(out, master_key, salt, info)
        self.commitment = bytes(commitment)

    def __repr__(self) -> str:
        return "Keys(...)"

    def wipe(self) -> None:
        """Overwrite the keys; the commitment is public."""
        wipe(self.tiles)
        wipe(self.header)


@dataclass(frozen=True, slots=True)
class Header:
    """A header as it lies in the file. Nothing of it is authenticated until `authenticate` has
    passed."""

    tile_size: int
    gaps: bool  # whether bytes of the GGUF file outside of header and tensors are sealed; else they are zeros
    size: int  # of the GGUF file, bytes
    salt: bytes
    sha256: bytes  # of the GGUF file
    gguf: bytes  # the GGUF file up to its tensor data
    commitment: bytes
    mac: bytes

    @property
    def context(self) -> bytes:
        """Everything that determines the plaintext of every tile: part of the keys' derivation."""
        return struct.pack("<IIQQ", self.tile_size, self._flags, self.size, len(self.gguf)) + self.sha256

    @property
    def _flags(self) -> int:
        return _GAPS if self.gaps else 0

    def _authenticated(self) -> bytes:
        return _FIXED.pack(MAGIC, self.tile_size, self._flags, self.size, len(self.gguf), self.salt, self.sha256,
                           self.commitment) + self.gguf

    def encode(self) -> bytes:
        """Return the header's bytes, without the zeros that follow."""
        return self._authenticated() + self.mac

    @property
    def nbytes(self) -> int:
        """Bytes up to the first record."""
        return _padded(_FIXED.size + len(self.gguf) + MAC_NBYTES)

    @property
    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of `encode()`: what a policy pins, and the associated data of every
        tile."""
        return hashlib.sha256(self.encode()).digest()

    def keys(self, master_key: bytes | bytearray | memoryview) -> Keys:
        """Derive the keys of this file. Raises ModelKeyError unless it was sealed under
        `master_key`."""
        keys = Keys(master_key, self.salt, self.context)
        if not hmac.compare_digest(keys.commitment, self.commitment):
            keys.wipe()
            raise ModelKeyError("this is not the key that the model was sealed under",
                                hint="give the key that it was sealed with; if it is, the header was altered")
        return keys

    def authenticate(self, keys: Keys) -> None:
        """Raises TamperedError unless the header is as it was sealed."""
        if not hmac.compare_digest(hmac.digest(keys.header, self._authenticated(), "sha256"), self.mac):
            raise TamperedError("the header of the sealed model does not authenticate",
                                hint="the file was altered; fetch it again")

    def layout(self) -> tuple[GGUFFile, Tiling]:
        """Return the GGUF header parsed, and where its tiles are. Raises FormatError if the two do
        not fit together."""
        parsed = gguf.parse(self.gguf, self.size)
        if len(self.gguf) != min(parsed.data_offset, self.size):
            raise malformed(40, "the size of the GGUF header", len(self.gguf), min(parsed.data_offset, self.size))
        tiles = Tiling(parsed, self.size, self.tile_size, gaps=self.gaps, base=self.nbytes)
        if self.gaps and all(segment.kind != "gap" for segment in tiles.segments):
            raise malformed(28, "the flags", "0x1", "0x0: the GGUF file has no gaps")
        return parsed, tiles


Layout = Callable[[Header], tuple[GGUFFile, Tiling]]
"""The GGUF header and the tiles that follow from a header, as `Header.layout` finds them."""


def read_header(file: RandomFile) -> Header:
    """Read the header of a sealed file, every length checked before anything is allocated. Raises
    FormatError for malformed bytes, UnsupportedError for another version, TamperedError and
    ModelError for the disk."""
    fixed = bytearray(min(_FIXED.size, file.size))
    file.read_into(memoryview(fixed), 0)
    if not fixed.startswith(MAGIC):
        start = bytearray(min(filekind.LOOKED_AT, file.size))
        file.read_into(memoryview(start), 0)
        _check_magic(bytes(start))
    if file.size < _padded(_FIXED.size + MAC_NBYTES):
        raise malformed(len(fixed), "the size of the file", file.size, "a whole header and more")
    _, tile_size, flags, size, nbytes, salt, sha256, commitment = _FIXED.unpack(fixed)
    tiling.check_tile_size(tile_size)
    if flags & ~_GAPS:
        raise malformed(28, "the flags", f"{flags:#x}", "0x0 and 0x1")
    room = min(file.size - _FIXED.size - MAC_NBYTES, gguf.MAX_HEADER_NBYTES, size)
    if nbytes > room:
        raise malformed(40, "the size of the GGUF header", nbytes, f"at most {room}")
    rest = bytearray(_padded(_FIXED.size + nbytes + MAC_NBYTES) - _FIXED.size)
    if _FIXED.size + len(rest) > file.size:
        raise malformed(file.size, "the size of the file", file.size, f"at least {_FIXED.size + len(rest)}")
    file.read_into(memoryview(rest), _FIXED.size)
    if any(rest[nbytes + MAC_NBYTES:]):
        raise malformed(_FIXED.size + nbytes + MAC_NBYTES, "the padding of the header", "not zero", "zeros")
    return Header(tile_size, bool(flags & _GAPS), size, salt, sha256, bytes(rest[:nbytes]), commitment,
                  bytes(rest[nbytes:nbytes + MAC_NBYTES]))


def is_sealed(start: bytes) -> bool:
    """Tell whether a file that begins with these bytes calls itself a sealed model, of whichever
    version."""
    return start.startswith(FAMILY)


def _check_magic(start: bytes) -> None:
    """Refuse what does not begin as a sealed model of this version."""
    magic = start[:len(MAGIC)]
    if magic == MAGIC:
        return
    if len(magic) == len(MAGIC) and is_sealed(magic):
        raise UnsupportedError(f"byte 23: the sealed model has version {magic[len(FAMILY):]!r}; supported: '2'",
                               hint="seal the model again")
    if magic.startswith(gguf.MAGIC):
        raise FormatError("byte 0: a GGUF file, which is not sealed; needed: a sealed model",
                          hint="seal it with: appliance model seal FILE")
    raise mistaken(start, "a sealed model") or malformed(0, "the magic", repr(magic), repr(MAGIC))


def check_size(file_size: int, tiles: Tiling) -> None:
    """Raises FormatError unless the file ends where its last record does."""
    if file_size != tiles.end:
        raise FormatError(f"the sealed model has {file_size} bytes; its header asks for {tiles.end}",
                          hint="the file was cut off or something was added to it; fetch it again")


def _padded(nbytes: int) -> int:
    return -(-nbytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
