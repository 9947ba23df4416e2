"""The audit log's signed heads while the service runs: made at the policy's interval, and brought
onto the disk before what they cover leaves. Beside them, keys that must be destroyed meanwhile, and
counts of what no key asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from appliance.audit.log import AuditLog
from appliance.audit.sink import AUDIT_FULL
from appliance.errors import AuditError

EXPIRY_SECONDS = 60.0
COUNTING_SECONDS, SPARING = 60.0, 60  # every minute; where the rest of the disk is kept for tenants, every so many


class Checkpoints:
    """Makes checkpoints until it is cancelled."""

    def __init__(self, audit: AuditLog, interval_ms: int | None) -> None:
        self._audit, self._interval_ms = audit, interval_ms

    async def run(self, failed: Callable[[AuditError], None]) -> None:
        """Sign the head at each interval at which the log grew; `failed` is called once the log
        cannot be written."""
        if self._interval_ms is None:
            return
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await asyncio.to_thread(self._audit.checkpoint)
            except AuditError as error:
                failed(error)
                if error.code != AUDIT_FULL:
                    return


class Expiry:
    """Has keys of the log's periods destroyed until it is cancelled."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    async def run(self, failed: Callable[[AuditError], None]) -> None:
        """Look each minute; `failed` is called once the log cannot be written."""
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                await asyncio.to_thread(self._audit.expire)
            except AuditError as error:
                failed(error)
                return


class Counting:
    """Has counts of what no key asked for recorded until it is cancelled; `close` of the log has
    the last ones."""

    def __init__(self, audit: AuditLog, ample: Callable[[], bool]) -> None:
        """`ample`: whether the log's disk has more room than what is kept for tenants."""
        self._audit, self._ample = audit, ample

    async def run(self, failed: Callable[[AuditError], None]) -> None:
        """Write a record each minute in which something was counted. `failed` is called where it
        cannot be written; the counts are kept for the next where the disk is full."""
        minutes = 0
        while True:
            await asyncio.sleep(COUNTING_SECONDS)
            minutes += 1
            if minutes < SPARING and not self._ample():
                continue
            minutes = 0
            try:
                await asyncio.to_thread(self._audit.fold)
            except AuditError as error:
                failed(error)
                if error.code != AUDIT_FULL:
                    return


class Flushing:
    """Brings records onto the disk together: one flush is enough for all that wait for it."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._waiting: list[asyncio.Future[None]] = []
        self._worker: asyncio.Task[None] | None = None

    async def flushed(self) -> None:
        """Return once each record that is written by now is on the disk. AuditError."""
        if not self._audit.lasting:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await future

    async def _work(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error: Exception | None = None
            try:
                await asyncio.to_thread(self._audit.flush)
            except Exception as failed:  # noqa: BLE001 - told to each that waits
                error = failed
            for future in waiting:
                if not future.done():
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)
