"""The audit log: one canonical JSON object a line, from a closed schema, without content.

Nothing outside `events.schema` can be written: an unknown event or field, or a value that its
field's type does not accept, is dropped and counted (`strict=True`, for tests and development,
raises instead). The format is specified in docs/formats/audit-log.md. The log knows nothing about
requests or models; it is told names once, at boot.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import select
import stat
import sys
import threading
import time
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import structlog

from appliance import hostclock
from appliance.audit.events import Vocabularies, schema
from appliance.codec.canonical import canonical
from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import AuditError

FORMAT = 1
# Fields of the envelope, in every record. `prev` is the place of the hash chain: null until records
# are chained.
ENVELOPE = ("v", "seq", "boot", "time", "time_source", "mono_us", "prev", "event")


_REGULAR = "name a regular file, or leave --log out and pipe standard output to what collects it"


class Sink(Protocol):
    """Where lines go: any binary file that is not buffered will do."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def write(self, data: bytes, /) -> int | None:
        """Write one line; how much of it was taken, None: nothing. OSError when it fails."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


def new_request_id() -> str:
    """A request id of ours: `req-` and 16 random bytes in hex."""
    return f"req-{secrets.token_hex(16)}"


def open_sink(path: Path | None) -> BinaryIO:
    """A sink that appends: a file of mode 0600 (a link or another's file is refused), or standard
    output for None.

    Raises AuditError when the file cannot be opened.
    """
    if path is None:
        return _Standard(os.dup(sys.stdout.fileno()), "ab")
    try:
        descriptor, found = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    except WrongKindError:
        raise AuditError(f"audit log {path}: not a regular file", hint=_REGULAR) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads, where opening would wait; or a socket
            raise AuditError(f"audit log {path}: a FIFO or a socket", hint=_REGULAR) from None
        raise AuditError(f"audit log {path}: {error.strerror}", hint="the folder must exist and be writable") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(descriptor)
        raise AuditError(
            f"audit log {path}: mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}",
            hint="it must be a regular file of the appliance's own user with mode 0600")
    sink = os.fdopen(descriptor, "ab", buffering=0)
    try:
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            sink.write(b"\n")  # a record that was cut, as where the disk was full: the next begins on a line of its own
    except OSError as error:
        sink.close()
        raise AuditError(f"audit log {path}: {error.strerror}", hint="see that the disk has room") from None
    return sink


class _Standard(io.FileIO):
    """Standard output, which waits for a reader also where whoever started the process has made it
    not to block: it would take nothing then, without an error, and the record would be lost."""

    def write(self, data: Any, /) -> int:
        """Write one line; waits until it is taken."""
        while (taken := super().write(data)) is None:
            select.select([], [self], [])
        return taken


class AuditLog:
    """Writes records; safe to call from several threads. `sink` is any binary file; nothing is
    buffered."""

    def __init__(self, sink: Sink, *, strict: bool = False) -> None:
        self.words = Vocabularies()
        self.dropped = 0       # events, fields and values that the schema does not have
        self.silenced = 0      # records of Python's logging whose text was thrown away (audit.stdlib)
        self.records = 0
        self.boot_id = secrets.token_hex(16)
        self._schema = schema(self.words)
        self._sink = sink
        self._strict = strict
        self._lock = threading.RLock()
        self._broken = ""  # why, once a record could not be written
        self._logger = structlog.wrap_logger(
            self, processors=[self._admit, self._stamp, self._render], wrapper_class=structlog.BoundLoggerBase,
            context_class=dict)

    def write(self, event: str, **fields: Any) -> None:
        """Write one record. Fields that are None are left out. Raises AuditError when the sink
        fails."""
        given = {name: value for name, value in fields.items() if value is not None}
        with self._lock:
            self._logger._proxy_to_logger("_append", event, **given)

    def seal(self) -> None:
        """Close the vocabularies: from now on no new name can be admitted."""
        for vocabulary in self.words.all():
            vocabulary.sealed = True

    def admit_codes(self, codes: Iterable[str]) -> None:
        """Admit error codes from a table in our code."""
        self.words.codes.admit(codes)

    def close(self) -> None:
        """Write the closing record and close the sink."""
        with self._lock:
            if not self._sink.closed:
                self.write("audit.closed", records=self.records, dropped=self.dropped, silenced=self.silenced)
                self._sink.close()

    def _drop(self, what: str) -> None:
        self.dropped += 1
        if self._strict:
            raise ValueError(f"not in the audit schema: {what}")

    def _admit(self, _logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Keep what the schema has; a record that lost a required field is written without it,
        never as it was."""
        event = entry.pop("event")
        fields = self._schema.get(event) if isinstance(event, str) else None
        if fields is None:
            self._drop("the event's name")
            raise structlog.DropEvent
        kept: dict[str, Any] = {}
        for name, value in entry.items():
            kind = fields.get(name) or fields.get(f"{name}?")
            if kind is not None and kind.accepts(value):
                kept[name] = value
            else:
                self._drop(f"{event}.{name if kind is not None else '(another field)'}")
        for name in fields:
            if not name.endswith("?") and name not in kept:
                self._drop(f"{event} without {name}")
        return {"event": event, **kept}

    def _stamp(self, _logger: Any, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Add the envelope. The host owns the wall clock: its time is marked so; order comes from
        `seq`."""
        now = hostclock.now().replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        number, self.records = self.records, self.records + 1
        return {"v": FORMAT, "seq": number, "boot": self.boot_id, "time": now, "time_source": "host",
                "mono_us": time.monotonic_ns() // 1000, "prev": None, **entry}

    def _render(self, _logger: Any, _method: str, entry: MutableMapping[str, Any]
                ) -> tuple[tuple[bytes], dict[str, Any]]:
        return (canonical(dict(entry)) + b"\n",), {}

    def _append(self, line: bytes) -> None:
        """Append one whole line; after a failure the log stays broken, for its last line may be
        cut."""
        if self._sink.closed:
            raise AuditError("audit log: it is closed", hint="the appliance must be restarted")
        try:
            if not self._broken and self._sink.write(line) != len(line):
                self._broken = "the sink took a part of a record"
        except OSError as error:
            self._broken = error.strerror or "it cannot be written"
        if self._broken:
            raise AuditError(f"audit log: {self._broken}", hint="see that the disk has room and that whoever reads the "
                             "log goes on, then start the appliance again")
