"""Wiping registers and the stack, where compiled code leaves pieces of keys and weights.

OpenSSL keeps powers of GCM's hash key on the stack, and kernels a few bytes of the tile that they
multiply. Vector registers that both had last are put on the stack by whoever saves them next: the
dynamic linker when it looks up a function, the kernel when it delivers a signal. Nobody overwrites
any of it while the thread does nothing, and the C library keeps the stacks of threads that ended
for later ones.
"""

from __future__ import annotations

import ctypes
import platform

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NBYTES = 128 << 10
"""Below the caller that are wiped: several times what a decryption called by the interpreter takes."""

_STACK_POINTER = {"x86_64": 160, "aarch64": 432}
"""Where ucontext_t has it (glibc: sysdeps/unix/sysv/linux/ARCH/sys/ucontext.h). The second follows from the headers
alone: no such machine has run this."""
_CONTEXT_NBYTES = 8192  # more than any ucontext_t has
_RETURN_NBYTES = 8  # of the call of memset itself: the address to which it returns

_LIBC = ctypes.CDLL(None)
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_LIBC.memset.argtypes = _ARGUMENTS
_NOTHING = AESGCM(bytes(32)), bytes(12), bytes(4096)
"""Key, nonce and plaintext of nobody: long enough for every register that the cipher uses."""


def wipe(nbytes: int = NBYTES) -> None:
    """Overwrite vector registers with what nobody need hide, and `nbytes` of this thread's stack
    below the frame from which the interpreter calls compiled code. To be called by the function
    that called the code in question, or by one that called it. Elsewhere than on Linux with glibc
    on a known machine the stack stays."""
    cipher, nonce, data = _NOTHING
    cipher.encrypt(nonce, data, None)
    offset, getcontext = _STACK_POINTER.get(platform.machine()), getattr(_LIBC, "getcontext", None)
    if offset is None or getcontext is None:
        return
    getcontext.argtypes = _ARGUMENTS  # two more than it looks at: so it is called from the very frame that calls memset
    context = ctypes.create_string_buffer(_CONTEXT_NBYTES)
    getcontext(ctypes.addressof(context), 0, 0)
    pointer = int.from_bytes(context.raw[offset:offset + 8], "little")
    _LIBC.memset(pointer - _RETURN_NBYTES - nbytes, 0, nbytes)
