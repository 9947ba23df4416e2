"""Progress bars of commands that read or write large files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from appliance.models.file.disk import Progress


@contextlib.contextmanager
def bar(title: str) -> Iterator[Progress]:
    """Show a progress bar for one file on standard error, where that is a terminal."""
    with bars() as progress:
        yield lambda done, total: progress(title, done, total)


class _Bars:
    """One bar for each step, the last one open."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step not in self._open:
            self.close()
            self._open[step] = tqdm(total=total, desc=step, unit="B", unit_scale=True, unit_divisor=1024,
                                    file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)
        found = self._open[step]
        found.update(done - found.n)

    def close(self) -> None:
        for found in self._open.values():
            found.close()


@contextlib.contextmanager
def bars() -> Iterator[_Bars]:
    """Progress bars, one after the other."""
    made = _Bars()
    try:
        yield made
    finally:
        made.close()
