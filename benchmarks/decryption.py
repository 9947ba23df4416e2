"""How fast this process decrypts tiles, by the library that the engine would use: no engine, no
multiplication, threads that never wait for each other."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.secure import libcrypto
from appliance.secure.libcrypto import NONCE_NBYTES, TAG_NBYTES, Cipher, Libcrypto

ROOM = 256 << 20
"""Bytes of tiles that a thread goes through, so that they come from memory and not from a cache."""

PIECE = 256 << 10
"""Bytes of one call: whole tiles, evenly apart, are read slower by some CPUs (docs/notes/streaming.md)."""

_EMPTY = 1000  # messages without text, of which the quickest says what a call takes


class _Tiles:
    """The sealed tiles of a thread, and room for an opened tile."""

    def __init__(self, nbytes: int, library: Libcrypto | None) -> None:
        self._nbytes, key = nbytes, os.urandom(32)
        self._stride, self._at = -(-(nbytes + TAG_NBYTES) // 4096) * 4096, 0
        self._count, self._nonce = max(ROOM // self._stride, 1), bytes(NONCE_NBYTES)
        sealed = AESGCM(key).encrypt(self._nonce, bytes(nbytes), None)  # nothing but zeros: the nonce repeats
        self._memory = mmap.mmap(-1, self._count * self._stride)
        for index in range(self._count):
            self._memory[index * self._stride:index * self._stride + len(sealed)] = sealed
        self._view, self._out = memoryview(self._memory), mmap.mmap(-1, nbytes)
        self._to = memoryview(self._out)
        self._whole, self._empty = AESGCM(key), AESGCM(key).encrypt(self._nonce, b"", None)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._place = ctypes.addressof(ctypes.c_char.from_buffer(self._out))
        self._library, self._cipher = library, None if library is None else Cipher(library, key)

    def open(self, nbytes: int | None = None) -> None:
        """Open the next tile; with 0, a message without text."""
        nbytes = self._nbytes if nbytes is None else nbytes
        start, self._at = self._at * self._stride, (self._at + 1) % self._count
        if self._library is None or self._cipher is None:
            record = self._view[start:start + nbytes + TAG_NBYTES] if nbytes else self._empty
            self._whole.decrypt_into(self._nonce, record, None, self._to[:nbytes])
            return
        call, context, count = self._library.call, self._cipher.address, ctypes.c_int()
        tag = self._view[start + nbytes:start + nbytes + TAG_NBYTES].tobytes() if nbytes else self._empty
        right = call("EVP_DecryptInit_ex", context, None, None, None, self._nonce)
        for at in range(0, nbytes, PIECE):
            right = right and call("EVP_DecryptUpdate", context, self._place + at, ctypes.byref(count),
                                   self._start + start + at, min(PIECE, nbytes - at))
        right = right and call("EVP_CIPHER_CTX_ctrl", context, libcrypto.SET_TAG, TAG_NBYTES, tag)
        if not right or call("EVP_DecryptFinal_ex", context, self._place, ctypes.byref(count)) != 1:
            raise RuntimeError("a tile does not authenticate")


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Decryption:
    """Tiles of one size for some threads."""

    def __init__(self, nbytes: int, threads: int, *, compiled: bool) -> None:
        """`compiled`: by the system's libcrypto, as compiled code calls it; else by the
        interpreter's library."""
        library = libcrypto.load() if compiled else None
        self._nbytes, self._each = nbytes, [_Tiles(nbytes, library) for _ in range(threads)]

    def rate(self, seconds: float) -> float:
        """Bytes that the threads decrypt in a second, the calls' own time left out."""
        call = min(_seconds(lambda: self._each[0].open(0)) for _ in range(_EMPTY))
        counts, end = [0] * len(self._each), time.perf_counter() + seconds

        def work(index: int) -> None:
            while time.perf_counter() < end:
                for _ in range(8):
                    self._each[index].open()
                counts[index] += 8

        start = time.perf_counter()
        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(self._each))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        busy = len(self._each) * (time.perf_counter() - start) - call * sum(counts)
        return len(self._each) * self._nbytes * sum(counts) / busy
