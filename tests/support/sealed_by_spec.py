"""Seals by docs/formats/sealed-model.md alone: written from its text, sharing no code with the product.

Only formats whose kernel order is short to write are known here. The layout's own tests cover the
others.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import textwrap
import zlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"appliance/sealed-model/2"


@dataclass(frozen=True)
class Part:
    """A tensor or a gap of a GGUF file: where it lies, and its shape with the slowest dimension first."""

    offset: int
    nbytes: int
    format: str = ""  # F32 or Q8_0; empty for a gap
    shape: tuple[int, ...] = ()


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 (RFC 5869), one block of output."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _units(data: bytes, format_name: str, columns: int) -> list[list[bytes]]:
    """Rows of a matrix, each a list of what is interleaved: 4-byte pieces, but 2-byte scales."""
    size = 4 * columns if format_name == "F32" else columns // 32 * 34
    rows = [data[at:at + size] for at in range(0, len(data), size)]
    if format_name == "F32":
        return [[row[at:at + 4] for at in range(0, size, 4)] for row in rows]
    return [[piece for at in range(0, size, 34) for piece in _block(row[at:at + 34])] for row in rows]


def _block(block: bytes) -> list[bytes]:
    """A Q8_0 block: the scale, then its weights in fours, each made unsigned."""
    weights = bytes(value ^ 0x80 for value in block[2:])
    return [block[:2], *(weights[at:at + 4] for at in range(0, 32, 4))]


def _filler_row(format_name: str, columns: int, value: int) -> list[bytes]:
    size = 4 * columns if format_name == "F32" else columns // 32 * 34
    return _units(bytes([value]) * size, format_name, columns)[0]


def _cut(units: list[bytes], unit_nbytes: int, tile_size: int) -> list[bytes]:
    """Units in tiles: as few as can be, then as even as can be."""
    most = max(tile_size // unit_nbytes, 1)
    tiles = -(-len(units) // most)
    if tiles > 1:
        tiles += -tiles % 4
    each = -(-len(units) // tiles)
    return [b"".join(units[at:at + each]) for at in range(0, len(units), each)]


def _tiles(gguf: bytes, part: Part, tile_size: int, filler: int) -> list[bytes]:
    data = gguf[part.offset:part.offset + part.nbytes]
    if len(part.shape) < 2:
        size = {"": 1, "F32": 4, "Q8_0": 34}[part.format]
        return _cut([data[at:at + size] for at in range(0, len(data), size)], size, tile_size)
    *outer, rows, columns = part.shape
    runs = 1
    for count in outer:
        runs *= count
    each = len(data) // runs
    found = []
    for run in range(runs):
        units = _units(data[run * each:(run + 1) * each], part.format, columns)
        units += [_filler_row(part.format, columns, filler)] * (-rows % 16)
        groups = [b"".join(row[i] for i in range(len(units[0])) for row in units[at:at + 16])
                  for at in range(0, len(units), 16)]
        found += _cut(groups, len(groups[0]), tile_size)
    return found


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4096)


def seal(gguf: bytes, header_nbytes: int, parts: list[Part], key: bytes, salt: bytes, tile_size: int,
         *, gaps: bool = False, digest: bytes | None = None, filler: int = 0) -> bytes:
    """A sealed file. `parts` in the order of the file; gaps among them only with `gaps`. A sealer who breaks the
    rules states another `digest`, or fills up groups with rows of another byte than 0."""
    digest = hashlib.sha256(gguf).digest() if digest is None else digest
    context = struct.pack("<IIQQ", tile_size, int(gaps), len(gguf), header_nbytes) + digest
    tile_key, header_key, commitment = (
        hkdf(key, salt, MAGIC + b"\n" + label + b"\n" + context)
        for label in (b"tile key", b"header key", b"commitment"))
    head = MAGIC + context[:24] + salt + digest + commitment + gguf[:header_nbytes]
    head += hmac.digest(header_key, head, "sha256")
    bound = hashlib.sha256(head).digest()
    plain = [tile for part in parts for tile in _tiles(gguf, part, tile_size, filler)]
    records = [_padded(AESGCM(tile_key).encrypt(number.to_bytes(12, "big"), tile, bound))
               for number, tile in enumerate(plain)]
    return _padded(head) + b"".join(records)


def header_of(sealed: bytes) -> bytes:
    """The header's bytes, without padding."""
    return sealed[:144 + int.from_bytes(sealed[40:48], "little") + 32]


def write_vector(fields: dict[str, str], body: bytes) -> str:
    """A vector as text: `name: value` lines, then, unless it has a `base`, an empty line and base64 of the
    zlib-compressed file."""
    head = "".join(f"{name}: {value}\n" for name, value in fields.items())
    if not body:
        return head
    text = base64.b64encode(zlib.compress(body, 9)).decode()
    return head + "\n" + "\n".join(textwrap.wrap(text, 110)) + "\n"


def read_vector(folder: Path, name: str) -> tuple[dict[str, str], bytes]:
    """Fields and file of a vector; one with a `base` is that one's file with `bytes` written `at` a place."""
    head, _, body = (folder / f"{name}.txt").read_text(encoding="ascii").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    if "base" not in fields:
        return fields, zlib.decompress(base64.b64decode(body))
    whole = bytearray(read_vector(folder, fields["base"])[1])
    new = bytes.fromhex(fields.get("bytes", ""))
    whole[int(fields.get("at", "0")):int(fields.get("at", "0")) + len(new)] = new
    return fields, bytes(whole)
