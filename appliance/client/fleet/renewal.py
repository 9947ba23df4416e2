"""A judge by files that may change while it is used: policies, measurements, the release log.

`connect` runs for months. A revocation by the builder's log, or in a new list of certificates,
counts without a restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from appliance.client.connection import Connection
from appliance.client.fleet.overlap import Overlap
from appliance.client.verdict import Verdict
from appliance.client.verifier import Verifier
from appliance.errors import ApplianceError

LOOK_SECONDS = 10.0

Judge = Verifier | Overlap


class Renewal:
    """Judges by what `make` reads, which is called again when a file of `files` has changed.

    Files that cannot be read, or are not valid, leave the judge as it was. `tell` gets the error.
    """

    def __init__(self, make: Callable[[], Judge], files: Iterable[Path], *,
                 tell: Callable[[ApplianceError], None] = lambda _: None, seconds: float = LOOK_SECONDS) -> None:
        self._make, self._files, self._tell, self._seconds = make, tuple(files), tell, seconds
        self._lock = threading.Lock()
        self._seen, self._looked = _stamps(self._files), time.monotonic()
        self._judge = make()
        self._over = self._ended()
        self._generation = 0

    @property
    def generation(self) -> int:
        """A number that is another when earlier verdicts are not to be used any more."""
        self._look()
        return self._generation

    def verify_connection(self, connection: Connection, *, nonce: bytes | None = None,
                          at: datetime | None = None) -> Verdict:
        """The verdict on whoever answers on this connection."""
        self._look()
        return self._judge.verify_connection(connection, nonce=nonce, at=at)

    def _ended(self) -> bool:
        return isinstance(self._judge, Overlap) and self._judge.over

    def _look(self) -> None:
        """Read files again if they changed; notice the end of an overlap."""
        with self._lock:
            if self._over != (ended := self._ended()):
                self._over, self._generation = ended, self._generation + 1
            if time.monotonic() < self._looked + self._seconds:
                return
            self._looked = time.monotonic()
            stamps = _stamps(self._files)
            if stamps != self._seen:
                self._seen = stamps
                self._renew()

    def _renew(self) -> None:
        try:
            self._judge = self._make()
        except ApplianceError as error:
            self._tell(error)
            return
        self._over, self._generation = self._ended(), self._generation + 1


def _stamps(files: Iterable[Path]) -> tuple[tuple[str, int, int, int], ...]:
    """Marks of files, and of each file in a folder: a changed or exchanged file has another."""
    found = []
    for path in files:
        for each in sorted(path.iterdir()) if path.is_dir() else [path]:
            try:
                told = each.stat()
            except OSError:
                continue
            found.append((str(each), told.st_mtime_ns, told.st_size, told.st_ino))
    return tuple(found)
