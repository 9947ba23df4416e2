"""configfs-tsm in memory, shaped like the kernel's, and signed by any hierarchy: files that react when written.

Stands where a provider expects the path of `/sys/kernel/config/tsm/report`. The rules are those of Linux' ABI document
(configfs-tsm-report): `generation` counts writes, a report is made when `outblob` is read, none without an `inblob`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from appliance.attestation.snp.table import CERTIFICATES

Sign = Callable[[bytes], bytes]


def certificate_table(certificates: dict[str, bytes]) -> bytes:
    """A certificate table as an extended guest request gives it (AMD 56421)."""
    guids = {name: guid for guid, name in CERTIFICATES.items()}
    head, body, offset = b"", b"", 24 * (len(certificates) + 1)
    for name, data in certificates.items():
        head += uuid.UUID(guids[name]).bytes + struct.pack("<II", offset + len(body), len(data))
        body += data
    return head + bytes(24) + body


@dataclass
class FakeTsm:
    """The folder of reports. `sign` turns report data into a report; `aux` is the certificate table.

    `race`: how many reads of a report find that somebody else wrote in between. `fail`: file name -> errno.
    """

    sign: Sign
    provider: str = "sev_guest"
    aux: bytes = b""
    floor: int | None = 0
    race: int = 0
    fail: dict[str, int] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def __truediv__(self, name: str) -> Entry:
        return self.entries.get(name) or Entry(self, name)


@dataclass
class Entry:
    """One report's folder."""

    tsm: FakeTsm
    name: str
    inblob: bytes = b""
    privlevel: int = 0
    generation: int = 0

    def mkdir(self, mode: int = 0o777) -> None:
        """Make it."""
        self.check("mkdir")
        if self.name in self.tsm.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.tsm.entries[self.name] = self

    def rmdir(self) -> None:
        """Remove it."""
        del self.tsm.entries[self.name]

    def check(self, name: str) -> None:
        """Fail where the test wants a failure."""
        if name in self.tsm.fail:
            raise OSError(self.tsm.fail[name], os.strerror(self.tsm.fail[name]))

    def __truediv__(self, name: str) -> File:
        return File(self, name)


@dataclass
class File:
    """One attribute of a report."""

    entry: Entry
    name: str

    def read_bytes(self) -> bytes:
        """The file as the kernel shows it."""
        entry, tsm = self.entry, self.entry.tsm
        entry.check(self.name)
        if entry.name not in tsm.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self.name == "provider":
            return tsm.provider.encode() + b"\n"
        if self.name == "generation":
            return b"%d\n" % entry.generation
        if self.name == "privlevel_floor" and tsm.floor is not None:
            return b"%d\n" % tsm.floor
        if self.name not in ("outblob", "auxblob") or (self.name == "auxblob" and tsm.provider == "tdx_guest"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not entry.inblob or entry.privlevel < (tsm.floor or 0):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self.name == "auxblob":
            return tsm.aux
        if tsm.race:
            tsm.race -= 1
            entry.inblob, entry.generation = bytes(64), entry.generation + 1
        return tsm.sign(entry.inblob)

    @contextlib.contextmanager
    def open(self, mode: str, buffering: int = -1) -> Iterator[Any]:
        """Write; as in configfs, what was written counts when the file is closed."""
        self.entry.check(self.name)
        written = io.BytesIO()
        yield written
        self.entry.generation += 1
        if self.name == "privlevel":
            self.entry.privlevel = int(written.getvalue())
        else:
            self.entry.inblob = written.getvalue()
