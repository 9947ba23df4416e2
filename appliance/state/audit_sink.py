"""The audit log's way onto the state disk: lines wait until the disk's key is there, then each is
one sealed record."""

from __future__ import annotations

import errno
import io
import secrets
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.audit import periods
from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.audit.periods import Periods
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.policy.schema import Policy
from appliance.secure.wipe import wipe
from appliance.state import frames, sealed_key
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT
from appliance.state.sealed_key import SealedKey

_MOST_WAITING = 10_000  # lines; a boot writes some tens


class StateSink(io.RawIOBase):
    """A binary file for the audit log. Records of a log that was never attached are lost when it is
    closed: a boot that failed before its keys came, which its diagnostic on the console tells of.
    """

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._disk: StateDisk | None = None

    def writable(self) -> bool:
        """Always."""
        return True

    def room(self, *, own: bool) -> int:
        """How many bytes a record may take: one of the log's own, or another."""
        if self._disk is None:
            return frames.MAX_PAYLOAD
        return self._disk.free if own else self._disk.room.others

    def attach(self, disk: StateDisk) -> None:
        """Write what waited, and from now on everything, to the disk. Raises StateError."""
        for line in self._waiting:
            disk.append(AUDIT, line)
        self._waiting, self._disk = [], disk

    def write(self, data: Any, /) -> int:
        """One whole line. OSError when the disk does not take it."""
        line = bytes(data)
        if self._disk is None:
            if len(self._waiting) >= _MOST_WAITING:
                raise OSError(errno.ENOBUFS, "too many records wait for the state disk")
            self._waiting.append(line)
            return len(line)
        try:
            self._disk.append(AUDIT, line)
        except StateError as error:
            raise OSError(errno.EIO, error.summary) from None
        return len(line)


def open_disk(policy: Policy, key: Secret | None, sink: StateSink | None, audit: AuditLog,
              sealed: SealedKey | None = None) -> StateDisk | None:
    """The policy's state disk, which takes over the key, with the audit log on it if `sink` is
    given. `sealed`: the disk's own places for its key, if that is in a TPM. None where the policy
    has no disk. Raises StateError; the key is wiped then."""
    if policy.state is None or key is None:
        return None
    chain = Chain()
    kept = sink is not None and audit.version > 1
    try:
        disk = StateDisk(Path(policy.state.device), key, fresh=policy.state.key.provider == "ephemeral",
                         heard=(lambda line: chain.follow(line.rstrip(b"\n"))) if kept else (lambda line: None),
                         first=(lambda device: None) if sealed is None else sealed.write,
                         most_saved=frames.MAX_SAVED if sealed is None else sealed_key.MAX_SAVED)
    except BaseException:
        key.wipe()
        raise
    try:
        if sink is not None:
            sink.attach(disk)
        if kept:
            audit.begin(chain, audit_key(disk), log=disk.disk, epoch=disk.epoch, repaired=disk.torn)
            retain(policy.privacy.retention.audit_ms, disk, audit)
        audit.write("state.opened", epoch=disk.epoch, disk=disk.disk.hex(), records=disk.records)
    except BaseException:
        disk.close()
        raise
    return disk


def retain(age_ms: int | None, disk: StateDisk, audit: AuditLog) -> None:
    """Have requests' records expire at an age; those that are over now expire at once. Without an
    age the keys that an earlier policy left stay: what it sealed can be read."""
    if age_ms is None:
        return
    parts = disk.snapshot
    audit.retain(Periods(age_ms, parts.seeds, derive=lambda seed: disk.derive(periods.PURPOSE + seed),
                         draw=secrets.token_bytes, keep=parts.replace_seeds))
    audit.expire()


def audit_key(disk: StateDisk) -> Ed25519PrivateKey:
    """The key of the log's checkpoints: as lasting as the disk, and never written."""
    seed = disk.derive(b"audit\n")
    try:
        return Ed25519PrivateKey.from_private_bytes(seed)
    finally:
        wipe(seed)
