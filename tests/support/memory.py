"""Looking for bytes in the memory of another process, from outside, as the root of a machine could."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.support.require import absent

CHUNK = 1 << 22
PAGE = 4096
_AROUND = 64  # bytes
_LONGEST = 4096  # bytes of what is looked for
_OBJECT = 8  # words from the digits of a small number to those of the next one


def require_root() -> None:
    """Skip the test where this user may not read the memory of a process that is not dumpable."""
    if os.geteuid() != 0:
        absent("root, who may read the memory of a process that is not dumpable")


def holds(pid: int, wanted: bytes) -> list[str]:
    """The mappings of a process in which the bytes stand. PermissionError where this user may not look."""
    found = ((line, data.count(wanted)) for line, _, data in _parts(pid, len(wanted) - 1))
    return list(dict.fromkeys(line for line, count in found if count))


def count(pid: int, wanted: bytes) -> int:
    """How often the bytes stand in the memory of a process. PermissionError where this user may not look."""
    return sum(data.count(wanted) for _, _, data in _parts(pid, len(wanted) - 1))


def counts(pid: int, wanted: Mapping[str, bytes | Sequence[int]]) -> dict[str, int]:
    """How often some bytes stand there, or numbers as Python's objects have them, one beside the other; of those that
    do. Errors as of `count`."""
    found = Counter[str]()
    for _, known, data in _parts(pid, _LONGEST):
        words = np.frombuffer(data, np.int32, len(data) // 4)
        for name, each in wanted.items():
            if isinstance(each, bytes):
                found[name] += data.count(each, max(0, known - len(each) + 1))
            else:
                places = np.flatnonzero(words == each[0])
                for number, value in enumerate(each):
                    after = places + _OBJECT * number
                    places = places[(after < words.size) & (words[np.minimum(after, words.size - 1)] == value)]
                found[name] += len(places)
    return {name: count for name, count in found.items() if count}


def _parts(pid: int, kept: int) -> Iterator[tuple[str, int, bytes]]:
    """All readable memory but for pages of zeros: a mapping, and a part of it behind the last bytes of the part before;
    how many these are, `kept` at most. (Half of all pages were never written. Nothing that is looked for has one.)"""
    with (Path("/proc") / str(pid) / "mem").open("rb", buffering=0) as memory:
        for line in (Path("/proc") / str(pid) / "maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(part, 16) for part in place.split("-"))
            tail = b""
            while "r" in rights and start < end:
                try:
                    memory.seek(start)
                    part = memory.read(min(CHUNK, end - start))
                except (OSError, ValueError, OverflowError):  # guard pages, [vvar], [vsyscall]
                    break
                if not part:
                    break
                last = b""
                for at, piece in _written(part):
                    known = tail if at == 0 else b""
                    yield line, len(known), known + piece
                    last = (known + piece)[-kept:] if kept and at + len(piece) == len(part) else b""
                tail, start = last, start + len(part)


def _written(part: bytes) -> Iterator[tuple[int, bytes]]:
    """The runs of pages that are not all zeros, and where they begin; some zeros around them may belong to a number."""
    pages = np.frombuffer(part.ljust(-(-len(part) // PAGE) * PAGE, b"\0"), np.uint64).reshape(-1, PAGE // 8)
    edges = np.flatnonzero(np.diff(pages.any(1).astype(np.int8), prepend=0, append=0)) * PAGE
    for first, last in edges.reshape(-1, 2).tolist():
        begin = max(first - _AROUND, 0)
        yield begin, part[begin:last + _AROUND]
