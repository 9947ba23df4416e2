"""A state disk in a file, with shelves for pages of engines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.engine.engine import PageKind
from appliance.keys.providers import Secret
from appliance.state import page_format
from appliance.state.disk import StateDisk
from appliance.state.page_keys import StateKeys
from appliance.state.pages import PageShelf, PageWriter
from appliance.state.sessions import binding, shelf_nbytes

SECRET = bytes(range(1, 33))
LIFETIME = 8 * 3_600_000


class Clock:
    """A clock that moves only on command: the appliance's, and the host's."""

    def __init__(self, running: float = 1000.0, host: float = 1.7e9) -> None:
        self.running, self.host = running, host

    def sleep(self, seconds: float) -> None:
        """Let both go on."""
        self.running += seconds
        self.host += seconds


@dataclass
class Open:
    """An open disk with its shelves, as a process has them. Most tests have one."""

    disk: StateDisk
    keys: StateKeys
    keeper: PageWriter
    shelves: list[PageShelf]
    at: int

    @property
    def shelf(self) -> PageShelf:
        """The first one."""
        return self.shelves[0]

    def close(self) -> None:
        """As an appliance that ends."""
        self.keeper.close(self.keys.close, 30.0)
        self.disk.close()

    def kill(self) -> None:
        """As a process that is killed: nothing more is written."""
        self.keeper.broken = True
        self.keeper.close(lambda: None, 30.0)
        self.disk._device.close()


def blank(folder: Path, size: int = 8 << 20) -> Path:
    """A blank disk."""
    path = folder / "disk"
    path.write_bytes(b"")
    os.truncate(path, size)
    return path


def start(path: Path, page: PageKind, *, model: bytes = b"\1" * 32, clock: Clock | None = None, threads: bool = True,
          lifetime: int = LIFETIME, secret: bytes = SECRET, labels: Sequence[str] = ("tiny",)) -> Open:
    """Open a disk as a new process does, with a shelf for each label: models of one file."""
    disk, clock = StateDisk(path, Secret(bytearray(secret))), clock or Clock()
    try:
        size = shelf_nbytes(page)
        at = disk.reserve(size * len(labels) + page_format.TABLES_BYTES)
        keeper = PageWriter(disk.device)
        keys = StateKeys(disk, at + size * len(labels), lifetime, schedule=keeper.schedule, clock=lambda: clock.running,
                         host=lambda: clock.host)
    except BaseException:
        disk._device.close()
        raise
    shelves = [PageShelf(keeper, keys, binding(label, place, model, page.arithmetic), at=place, places=page.kept,
                         halves=page.halves, states=page.states, state=page.state_nbytes)
               for label, place in zip(labels, range(at, at + size * len(labels), size), strict=True)]
    if threads:
        keeper.tend = keys.tend
        keeper.start()
    return Open(disk, keys, keeper, shelves, at)


@contextlib.contextmanager
def running(path: Path, page: PageKind, **more: object) -> Iterator[Open]:
    """The same, closed at the end."""
    found = start(path, page, **more)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()
