"""Whether compiled code fetches tiles by itself, through the system's libcrypto, and what it needs
for that."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.models.file.disk import RandomFile
from appliance.models.file.tiling import DEFAULT_TILE_SIZE
from appliance.secure import libcrypto
from appliance.secure.libcrypto import Libcrypto

# The interpreter's time for a tile, as measured: in all, and while no other thread can have it.
_SECONDS, _ALONE_SECONDS = 12e-6, 6e-6
_NATIVE_SECONDS = 2e-6

PLAIN_TILE_SIZE = 256 << 10
"""Of a plain model that compiled code reads."""


@dataclass(frozen=True, slots=True)
class PassReads:
    """The tiles that compiled code had in a pass."""

    alive: Sequence[int]  # bytes of the largest one of each thread
    opened_nbytes: int  # that were decrypted, by all threads
    read_nbytes: int  # of the file


Settle = Callable[[PassReads, str, int, int], None]
"""Called after a pass, see `TileReader.settle`."""


@dataclass(frozen=True, slots=True)
class Native:
    """The means of compiled code to fetch tiles by itself. Addresses; valid until the source is
    closed."""

    functions: Mapping[str, int]  # by the names of the kernels' table STREAM
    extra: tuple[int, int]  # associated data of every tile: address, bytes
    piece_nbytes: int
    tile_nbytes: int
    workers: tuple[tuple[int, ...], ...]  # of each thread: EVP_CIPHER_CTX, places for two tiles, room for a piece
    file: RandomFile
    settle: Settle
    drop: bool = False  # whether the page cache is to forget what was read
    ahead_nbytes: int = 0  # that the system is to read ahead then
    tags: int = 0  # address of the tags of a plain model's tiles, 16 bytes each


def functions(library: Libcrypto) -> dict[str, int]:
    """Addresses of the C functions, by the names of the kernels' table."""
    libc = ctypes.CDLL(None)
    found = {name: ctypes.cast(libc[symbol], ctypes.c_void_p).value or 0
             for name, symbol in (
                 ("READ", "preadv2"), ("ERRNO", "__errno_location"), ("ADVISE", "posix_fadvise"))}
    return found | {name: library.address(symbol) for name, symbol in (
        ("INIT", "EVP_DecryptInit_ex"), ("UPDATE", "EVP_DecryptUpdate"), ("CONTROL", "EVP_CIPHER_CTX_ctrl"),
        ("FINAL", "EVP_DecryptFinal_ex"))}


@functools.cache
def _rate() -> float:
    """Bytes that one thread decrypts in a second with `cryptography`, calls not counted."""
    cipher, nonce, out = AESGCM(bytes(32)), bytes(12), bytearray(libcrypto.RATE_NBYTES)
    whole, empty = cipher.encrypt(nonce, bytes(out), None), cipher.encrypt(nonce, b"", None)
    return libcrypto.rate(lambda: cipher.decrypt_into(nonce, whole, None, out),
                          lambda: cipher.decrypt_into(nonce, empty, None, bytearray()))


def plain_tile_size(threads: int) -> int:
    """Bytes of the tiles that a plain model is best cut into. Rows as they were read and the packed
    tile fit together into a core's cache. The interpreter, where it fetches tiles, takes its time
    for each."""
    library = libcrypto.load()
    small = library is not None and worthwhile(library, threads, PLAIN_TILE_SIZE)
    return PLAIN_TILE_SIZE if small else DEFAULT_TILE_SIZE


def worthwhile(library: Libcrypto, threads: int, tile_nbytes: int) -> bool:
    """Tell whether `threads` threads get more tiles of a size in a second from libcrypto, called by
    compiled code, than from `cryptography`, called by an interpreter that they share. (An old
    libcrypto has no code for the vector AES of recent CPUs: 3.0 decrypts 5 GB/s where 3.5 does 22.)
    """
    native = threads / (_NATIVE_SECONDS + tile_nbytes / library.rate)
    interpreted = min(threads / (_SECONDS + tile_nbytes / _rate()), 1 / _ALONE_SECONDS)
    return native >= interpreted
