"""Memory for secrets: keys, plaintext weights, activations, keys and values of attention.

Such memory is locked in RAM (no swap disk sees it), left out of core dumps, and not handed to a
forked child. Where a limit does not let it be locked, that is recorded here and the work goes on:
`shortfall` says what is missing, and whoever is responsible for the process refuses to serve.
Wiping is the owner's part.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import threading
from typing import Any

from appliance.errors import ModelError

MADV_WIPEONFORK = 18
"""From linux/mman.h; Python has no name for it."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mlock2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.getrandom.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
_LIBC.getrandom.restype = ctypes.c_ssize_t
_ONFAULT = 1  # MLOCK_ONFAULT: pages are locked when they are first used, and not all brought in now
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_SLACK = 64  # bytes behind the end that kernels may read
_unlocked: dict[str, tuple[int, str]] = {}  # what -> bytes, why
_turn = threading.Lock()


def protect(address: int, nbytes: int, what: str, *, own: bool = True) -> None:
    """Lock the pages that hold `nbytes` at `address`, and keep them out of dumps; with `own`, when
    nothing else is in these pages, out of forked children, too. `what` names it if that fails."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = -(-(address + nbytes - first) // mmap.PAGESIZE) * mmap.PAGESIZE
    _LIBC.madvise(first, size, mmap.MADV_DONTDUMP)
    if own:
        _LIBC.madvise(first, size, MADV_WIPEONFORK)
    if _LIBC.mlock2(first, size, _ONFAULT):
        problem = os.strerror(ctypes.get_errno())
        with _turn:
            _unlocked[what] = (_unlocked.get(what, (0, ""))[0] + size, problem)


def shortfall() -> str | None:
    """The memory that could not be locked so far, with figures; None when everything was."""
    with _turn:
        if not _unlocked:
            return None
        parts = ", ".join(f"{nbytes} bytes of {what}" for what, (nbytes, _) in sorted(_unlocked.items()))
        why = next(iter(_unlocked.values()))[1]
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
    return f"{parts} cannot be locked in memory ({why}; RLIMIT_MEMLOCK: {allowed})"


def forget() -> None:
    """Drop the record of what could not be locked, when its owner is gone."""
    with _turn:
        _unlocked.clear()


class SecretBytes(bytearray):
    """Bytes that are overwritten when nothing refers to them any more: a signal that ends the
    process may come between their making and the code that wipes them. Slices are plain bytearrays:
    take them of a memoryview."""

    def __del__(self) -> None:
        self[:] = bytes(len(self))


def fill_randomly(buffer: Any) -> None:
    """Fill up to 256 bytes of a writable buffer from the kernel's random source. `os.urandom` would
    leave a copy."""
    place = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    if _LIBC.getrandom(place, len(buffer), 0) != len(buffer):  # no more than 256 bytes come whole (getrandom(2))
        raise OSError(ctypes.get_errno(), "getrandom")


def address(pages: mmap.mmap) -> int:
    """Where the pages begin."""
    return ctypes.addressof(ctypes.c_char.from_buffer(pages))


def anonymous(nbytes: int, what: str, *, secret: bool = False, huge: bool = True) -> mmap.mmap:
    """Fresh zeroed pages that belong to this process alone; `huge` ones if the kernel has them, for
    fewer faults. With `secret` they are protected, see `shortfall`. ModelError where there is no
    memory."""
    try:
        pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError, OverflowError):
        raise ModelError(f"no memory for {what}: {nbytes} bytes", hint="give the machine more memory, "
                         "or use a model with smaller weights", code="memory") from None
    if huge:
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    if secret:
        protect(address(pages), len(pages), what)
    return pages


def discard(pages: mmap.mmap, *, secret: bool = False) -> None:
    """Give back the pages at once, whatever still refers to them (a traceback, say). Those of a
    secret are overwritten first: what is given back is zeroed no sooner than when it is used again.
    """
    if secret:
        ctypes.memset(address(pages), 0, len(pages))
        _LIBC.munlock(address(pages), len(pages))  # locked pages cannot be given back
    pages.madvise(mmap.MADV_DONTNEED)
    with contextlib.suppress(BufferError):
        pages.close()


class LockedBuffer:
    """A page-aligned, zeroed, protected block of at least `nbytes`: `.address`, `.view`. Close it
    to wipe it."""

    def __init__(self, nbytes: int, what: str = "decrypted tiles") -> None:
        """Map the pages. Errors as `anonymous`."""
        self.nbytes = -(-(nbytes + _SLACK) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = anonymous(self.nbytes, what, secret=True, huge=False)
        self.address, self.view = address(self._pages), memoryview(self._pages)

    def wipe(self) -> None:
        """Overwrite it with zeros."""
        ctypes.memset(self.address, 0, self.nbytes)

    def close(self) -> None:
        """Wipe, and give the pages back to the system. The address is void from here on."""
        if not self._pages.closed:
            self.view.release()
            discard(self._pages, secret=True)
