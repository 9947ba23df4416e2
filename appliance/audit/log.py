"""The audit log: one canonical JSON object a line, from a closed schema, without content.

Nothing outside `events.schema` can be written: an unknown event or field, or a value that its
field's type does not accept, is dropped and counted (`strict=True`, for tests and development,
raises instead). A record that would lose a field which its event must have is not written, and
whoever asked for it is told. The log knows nothing about requests or models; it is told names once,
at boot.

Version 1 numbers the records of each boot. Versions 3 and 4 chain them all, over boots: `begin`
says where the chain stands, and records that are written before it wait. They go on behind records
of version 2, which nobody writes any more. docs/formats/audit-log.md and audit-log-2.md to
audit-log-4.md specify them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import __version__, hostclock
from appliance.audit import record
from appliance.audit.chain import Chain, SignedHead
from appliance.audit.counted import CountedRequests
from appliance.audit.events import ENVELOPE_2, OF_OTHERS, RETAINED, WRITTEN, Vocabularies, schema
from appliance.audit.periods import Periods
from appliance.audit.sink import Outlet, Sink
from appliance.codec.canonical import canonical
from appliance.errors import AuditError, StateError

FORMAT = 1
_AROUND_BYTES = 1 << 10  # of a record's place, of what it is filled up with, and of the disk's own frame
_MOST_WAITING = 10_000  # records of a boot before its log begins; one writes some tens


def new_request_id() -> str:
    """A request id of ours: `req-` and 16 random bytes in hex."""
    return f"req-{secrets.token_hex(16)}"


def _unfit(what: str) -> AuditError:
    """The error about a record that is not written. It has no value."""
    return AuditError(f"audit log: {what}", code="audit-record", hint="nothing of it was written; this is a defect "
                      "of the appliance")


@dataclass(frozen=True)
class RecordProof:
    """A record that was just written: its place, and the signed head that proves it."""

    boot: str
    epoch: int
    seq: int
    leaf: bytes
    path: tuple[bytes, ...]  # from the leaf to the root, which has it as its last
    time: str
    head: SignedHead


class AuditLog:
    """Writes records; safe to call from several threads. `sink` is any binary file; nothing is
    buffered."""

    def __init__(self, sink: Sink, *, strict: bool = False, version: int = FORMAT) -> None:
        """`version`: 1, or one of WRITTEN. Behind records of a later version the log has that."""
        if version not in (FORMAT, *WRITTEN):
            raise ValueError(f"version {version} of the audit log is not one that is written")
        self.words = Vocabularies()
        self.dropped = 0       # events, fields and values that the schema does not have
        self.silenced = 0      # records of Python's logging whose text was thrown away (boot.stdlib)
        self.records = 0
        self.boot_id = secrets.token_hex(16)
        self.version = version
        self._chain: Chain | None = None
        self._periods: Periods | None = None  # under which requests' records are sealed, if they must expire
        self._waiting: list[dict[str, Any]] = []  # of a chained log: what was written before `begin`
        self._schema = schema(self.words, version)
        self._out = Outlet(sink)
        self._strict = strict
        self._lock = threading.RLock()
        self._last: dict[str, Any] = {}  # of a chained log: the record that is being written
        self._own = True  # whether the record that is being written may take what is kept for the log's own
        self._closing = False
        self.counted = CountedRequests()  # what no key asked for; `fold` records it
        self._logger = structlog.wrap_logger(
            self, processors=[self._admit, self._stamp, self._render], wrapper_class=structlog.BoundLoggerBase,
            context_class=dict)

    def write(self, event: str, **fields: Any) -> None:
        """Write one record. Fields that are None are left out. Raises AuditError when the sink
        fails, and, before anything is written, for a record without a field that it must have."""
        with self._lock:
            self._own = self._closing or event not in OF_OTHERS
            self._logger._proxy_to_logger("_append", event, **{
                name: value for name, value in fields.items() if value is not None})

    @property
    def folds(self) -> bool:
        """Whether requests without a key are counted, and have no records of their own: in a
        chained log, and wherever strangers could fill a state disk."""
        return self.version > 1 or self._out.limited

    def fold(self) -> None:
        """Record what was counted since the last time. AuditError; the counts are kept then."""
        with self._lock:
            parts = self.counted.take()
            try:
                while parts:
                    self.write("requests.counted", **parts[0].fields)
                    parts.pop(0)
            finally:
                for part in parts:
                    self.counted.give_back(part)

    def begin(self, chain: Chain, key: Ed25519PrivateKey, *, log: bytes | None = None, epoch: int | None = None,
              repaired: int = 0) -> None:
        """Begin this boot's part of a chained log, where `chain` followed the records before it.

        `log`: the identity of a log that has none yet, 16 bytes. `epoch`: higher than any before.
        `repaired`: bytes of a torn record that were cut off. Raises AuditError as `write` does.
        """
        with self._lock:
            chain.begin(log or secrets.token_bytes(16), chain.epoch + 1 if epoch is None else epoch, key)
            waiting, self._waiting, self._chain = self._waiting, [], chain
            self.version = max(self.version, chain.version)
            self._schema = schema(self.words, self.version)
            self.write("log.opened", log=(chain.log or b"").hex(), epoch=chain.epoch, version=__version__,
                       audit_key_ed25519=chain.key.public.hex(), repaired_bytes=repaired, unchained=chain.unchained)
            for entry in waiting:
                self._append(self._line(entry))

    def retain(self, periods: Periods) -> None:
        """Seal requests' records from now on under keys of periods, which `expire` destroys."""
        with self._lock:
            self._periods = periods

    def expire(self) -> None:
        """Destroy the keys of periods that are over, and record each. AuditError."""
        with self._lock:
            try:
                gone = [] if self._periods is None else self._periods.expire()
            except StateError as error:
                raise self._out.fail(error.summary) from None
            for number in gone:
                self.write("audit.expired", period=number)

    @property
    def lasting(self) -> bool:
        """Whether records of a chained log are on the disk only after `flush`: those in a file."""
        return self._chain is not None and self._out.lasting

    def flush(self) -> None:
        """Return once every record so far is on the disk, where the log is a file. It may be called
        in any thread, and others write meanwhile. AuditError when the disk fails."""
        self._out.flush()

    @property
    def chain(self) -> Chain | None:
        """The chain, once it began."""
        return self._chain

    def write_signed(self, event: str, **fields: Any) -> RecordProof:
        """Write one record of a chained log, and sign the head that has it as its last. Raises
        AuditError."""
        with self._lock:
            chain = self._begun
            path, seq = chain.tree.path, chain.tree.end
            self.write(event, **fields)
            return RecordProof(self.boot_id, chain.epoch, seq, chain.head or b"", path, str(self._last["time"]),
                               chain.signed())

    def signed(self) -> SignedHead:
        """The signed head of a chained log, as it is now."""
        with self._lock:
            return self._begun.signed()

    def checkpoint(self) -> SignedHead | None:
        """Sign the head and record it, and bring both onto the disk; None where nothing was written
        since the last time."""
        with self._lock:
            chain = self._begun
            if chain.newest is not None and chain.newest.checkpoint.size + 1 == chain.tree.end:
                return None
            made = chain.signed()
            self.write("audit.checkpoint", size=made.checkpoint.size, root=made.checkpoint.root.hex(),
                       signature=made.signature.hex())
        self.flush()  # without the lock: a disk takes its time, and others write meanwhile
        return made

    @property
    def _begun(self) -> Chain:
        if self._chain is None:
            raise AuditError("audit log: it is not chained", code="audit-unchained",
                             hint="a policy of schema 2 chains its log")
        return self._chain

    def seal(self) -> None:
        """Close the vocabularies: from now on no new name can be admitted."""
        for vocabulary in self.words.all():
            vocabulary.sealed = True

    def admit_codes(self, codes: Iterable[str]) -> None:
        """Admit error codes from a table in our code."""
        self.words.codes.admit(codes)

    def admit_tenants(self, names: Iterable[str]) -> None:
        """Admit the names in a newer list of tenants, which the policy's authority signed."""
        with self._lock:
            self.words.tenants.extend(names)

    def close(self) -> None:
        """Write the closing record and close the sink."""
        with self._lock:
            if self._periods is not None:
                self._periods.wipe()
            if not self._out.closed:
                self._closing = True
                self.fold()
                self.write("audit.closed", records=self.records, dropped=self.dropped, silenced=self.silenced)
                if self._chain is not None:
                    self.checkpoint()
                    self.flush()
                self._out.close()

    def _drop(self, what: str) -> None:
        self.dropped += 1
        if self._strict:
            raise ValueError(f"not in the audit schema: {what}")

    def _admit(self, _logger: Any, _method: str, entry: MutableMapping[str, Any]) -> dict[str, Any]:
        """Keep the part of an event that the schema has. Raises AuditError if a field is lost that
        the event must have."""
        event = entry.pop("event")
        fields = self._schema.get(event) if isinstance(event, str) else None
        if fields is None:
            self._drop("the event's name")
            raise structlog.DropEvent
        kept: dict[str, Any] = {}
        for name, value in entry.items():
            kind = record.kind_of(name, fields)
            if kind is not None and kind.accepts(value):
                kept[name] = value
            else:
                self._drop(f"{event}.{name if kind is not None else '(another field)'}")
        if (absent := record.lacking(fields, kept)) is not None:
            self._drop(f"{event} without {absent}")
            raise _unfit(f"a {event} lacks {absent}, or its value is not in the schema")
        return {"event": event, **kept}

    def _stamp(self, _logger: Any, _method: str, entry: MutableMapping[str, Any]) -> dict[str, Any]:
        """Put an entry in its envelope. The host owns the wall clock: its time is marked so; order
        comes from `seq`."""
        exact, mono_us = hostclock.now().replace(tzinfo=None), time.monotonic_ns() // 1000
        number, self.records = self.records, self.records + 1
        if self.version == FORMAT:
            return {"v": FORMAT, "seq": number, "boot": self.boot_id,
                    "time": exact.isoformat(timespec="microseconds") + "Z", "time_source": "host", "mono_us": mono_us,
                    "prev": None, **entry}
        stamped = {"boot": self.boot_id, "time": exact.isoformat(timespec="seconds") + "Z", "time_source": "host",
                   "mono_ms": mono_us // 1000, **entry}
        if self._chain is None:
            if len(self._waiting) >= _MOST_WAITING:
                raise AuditError("audit log: too many records wait for its disk")
            self._waiting.append(stamped)
            raise structlog.DropEvent
        return stamped

    def _render(self, _logger: Any, _method: str, entry: Any) -> tuple[tuple[bytes], dict[str, Any]]:
        """Hand `_append` a record as its line."""
        return (self._line(dict(entry)),), {}

    def _line(self, entry: dict[str, Any]) -> bytes:
        """A record as its line; in a chained log at its place in it. AuditError where it finds no
        room."""
        self._require_room(entry)
        if (chain := self._chain) is not None:
            whole = {**entry, "v": self.version, "seq": chain.tree.end, "epoch": chain.epoch, "prev": chain.prev}
            if (wrong := record.fault(whole, {self.version: self._schema})) is not None:
                raise _unfit(wrong)
            self._last = self._sealed(whole)
            return canonical(self._last) + b"\n"
        return canonical(entry) + b"\n"

    def _sealed(self, whole: dict[str, Any]) -> dict[str, Any]:
        """A record in its place, its own fields sealed if it is one that must expire."""
        if self._periods is None or whole["event"] not in RETAINED:
            return whole
        self._out.require_open()  # before anything is sealed: no number of the chain is sealed twice
        envelope = {name: value for name, value in whole.items() if name in ENVELOPE_2}
        fields = {name: value for name, value in whole.items() if name not in ENVELOPE_2}
        try:
            return envelope | self._periods.seal(bytes.fromhex(self.boot_id), whole["seq"], whole["event"], fields)
        except StateError as error:
            raise self._out.fail(error.summary) from None

    def _require_room(self, entry: dict[str, Any]) -> None:
        """AuditError where a record finds no room. It has no number then, and nothing of it is
        sealed or written: the log goes on with those that do. Only one of its own ends it."""
        if self._out.limited:
            try:
                self._out.require_room(2 * len(canonical(entry)) + _AROUND_BYTES, own=self._own)  # sealed, it is hex
            except AuditError:
                self.records -= 1
                raise

    def _append(self, line: bytes) -> None:
        self._out.write(line)
        if self._chain is not None:
            self._chain.add(line[:-1], self._last)
