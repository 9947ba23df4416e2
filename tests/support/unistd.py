"""Numbers of system calls from the kernel's headers on this machine: x86_64 from its own, aarch64 from the generic."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tests.support.require import absent

HEADERS = {"x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
           "aarch64": ("/usr/include/asm-generic/unistd.h",)}


@functools.cache
def numbers(machine: str) -> dict[str, int]:
    """Name to number; skips the test, or fails it when all are required, where the headers are not installed."""
    path = next((Path(name) for name in HEADERS[machine] if Path(name).is_file()), None)
    if path is None:
        absent("the kernel's headers are not installed: apt-get install linux-libc-dev")
    text = path.read_text()
    plain = {name: int(value) for name, value in re.findall(r"#define __NR_(\w+)\s+(\d+)\b", text)}
    shared = {name: int(value) for name, value in re.findall(r"#define __NR3264_(\w+)\s+(\d+)\b", text)}
    aliases = re.findall(r"#define __NR_(\w+)\s+__NR3264_(\w+)", text)
    # the first alias in the file is that of 64 bits
    return plain | {name: shared[other] for name, other in reversed(aliases) if other in shared}
