"""The audit log's signed heads while the service runs: made at the policy's interval, and brought
onto the disk before what they cover leaves. Beside them, keys that must be destroyed meanwhile, and
counts of what no key asked for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from appliance.audit.log import AuditLog
from appliance.audit.sink import AUDIT_FULL
from appliance.errors import AuditError

EXPIRY_SECONDS = 60.0
COUNTING_SECONDS, SPARING = 60.0, 60  # every minute; where the rest of the disk is kept for tenants, every so many


Failed = Callable[[AuditError], None]
"""What is called once the log cannot be written, and again and again where its disk is full."""


async def make_checkpoints(audit: AuditLog, interval_ms: int | None, failed: Failed) -> None:
    """Sign the log's head at each interval at which it grew."""
    if interval_ms is not None:
        await _repeat(audit.checkpoint, interval_ms / 1000, failed)


async def expire(audit: AuditLog, failed: Failed) -> None:
    """Have keys of the log's periods destroyed: look each minute."""
    await _repeat(audit.expire, EXPIRY_SECONDS, failed)


async def record_counts(audit: AuditLog, ample: Callable[[], bool], failed: Failed) -> None:
    """Record each minute what no key asked for, and seldom where the log's disk has no more room
    than what is kept for tenants, which `ample` says. Where it is full the counts are kept for the
    next record; `close` of the log has the last ones."""
    minutes = itertools.count(1)
    await _repeat(audit.fold, COUNTING_SECONDS, failed, lambda: next(minutes) % SPARING == 0 or ample())


async def _repeat(work: Callable[[], object], seconds: float, failed: Failed,
                  due: Callable[[], bool] = lambda: True) -> None:
    """Do some work in a thread each so many seconds, until it is cancelled or the log is lost."""
    while True:
        await asyncio.sleep(seconds)
        try:
            if due():
                await asyncio.to_thread(work)
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

    async def flush(self) -> None:
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
