"""Memory for plaintext weights: locked in RAM, left out of core dumps, wiped when it is given back."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from appliance.errors import ModelError

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_SLACK = 64  # bytes behind the end that kernels may read


class LockedBuffer:
    """A page-aligned, zeroed block of at least `nbytes`: `.address`, `.view`. Close it to wipe it."""

    def __init__(self, nbytes: int) -> None:
        """Map and lock the pages. ModelError where RLIMIT_MEMLOCK or the memory does not allow it."""
        total = -(-(nbytes + _SLACK) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._pages = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError) as error:
            raise ModelError(f"no memory for a tile buffer of {total} bytes: {error}", code="memory") from None
        self._pages.madvise(mmap.MADV_DONTDUMP)
        self._array = (ctypes.c_char * total).from_buffer(self._pages)
        self.address = ctypes.addressof(self._array)
        self.view = memoryview(self._pages)
        self.nbytes = total
        if _LIBC.mlock(self.address, total):
            problem = os.strerror(ctypes.get_errno())
            self.close()
            raise ModelError(f"{total} bytes for decrypted tiles cannot be locked in memory: {problem}",
                             hint="raise RLIMIT_MEMLOCK (ulimit -l; LimitMEMLOCK= in systemd)", code="memory-lock")

    def wipe(self, nbytes: int | None = None) -> None:
        """Overwrite the first `nbytes` (None: all) with zeros."""
        ctypes.memset(self.address, 0, self.nbytes if nbytes is None else min(nbytes, self.nbytes))

    def close(self) -> None:
        """Wipe, and give the pages back to the system. The address is void from here on."""
        if self._pages.closed:
            return
        self.wipe()
        self.view.release()
        del self._array
        with contextlib.suppress(BufferError):  # a view that an error's traceback still holds
            self._pages.close()
