"""Health of the random source: present in the CPU, not stuck, not lopsided.

The tests are those of NIST SP 800-90B, section 4.4, on output of the kernel's generator (after
conditioning, so at 8 bits of entropy a byte). Their cut-offs give a false alarm in 2^-40 of the
boots that see 4,096 bytes. They find a source that broke; they do not prove one good.
"""

from __future__ import annotations

import os
from pathlib import Path

SAMPLE_BYTES = 4096
# Repetition count (4.4.1): a byte that stands this often in a row. 4096 * 2^(-8 * (7 - 1)) < 2^-35
# a boot.
REPETITION_CUTOFF = 7
# Adaptive proportion (4.4.2): the first byte of a window of 512 that stands in it this often.
# P(1 + Binomial(511, 1/256) >= 26) < 2^-60, times 8 windows.
PROPORTION_WINDOW = 512
PROPORTION_CUTOFF = 26
_FLAGS = ("rdrand", "rdseed", "rng")  # x86; `rng` is the arm64 name


def cpu_source(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Which random instructions the CPU says it has: names joined by `+`, or `none`."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return "none"
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            words = set(value.split())
            return "+".join(flag for flag in _FLAGS if flag in words) or "none"
    return "none"


def repetition(sample: bytes, cutoff: int = REPETITION_CUTOFF) -> bool:
    """Whether no byte stands `cutoff` times in a row."""
    return not any(bytes([value]) * cutoff in sample for value in set(sample))


def proportion(sample: bytes, cutoff: int = PROPORTION_CUTOFF) -> bool:
    """Whether no window's first byte stands in it `cutoff` times."""
    windows = (sample[at:at + PROPORTION_WINDOW] for at in range(0, len(sample), PROPORTION_WINDOW))
    return all(window.count(window[0]) < cutoff for window in windows)


def draw() -> bytes:
    """SAMPLE_BYTES from the kernel. os.getrandom blocks until the kernel's generator is seeded."""
    sample = b""
    while len(sample) < SAMPLE_BYTES:
        sample += os.getrandom(SAMPLE_BYTES - len(sample))
    return sample


def problems(first: bytes, second: bytes) -> list[str]:
    """Names of the health tests that two draws fail."""
    found = []
    if first == second:
        found.append("two draws are equal")
    for sample in (first, second):
        if not repetition(sample):
            found.append("repetition count")
        if not proportion(sample):
            found.append("adaptive proportion")
    return found
