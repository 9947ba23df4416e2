"""The wall clock, which the host owns: whatever it says, it is an assertion, and no reason to fail.

Python's `time.time` raises OverflowError outside of the years 1677 to 2262, where nanoseconds do
not fit into 64 bits. The libraries of the service ask it for every log record, metric and header.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST = (datetime(2, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()
LATEST = (datetime(9998, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds()
"""Seconds since 1970: what lies outside is told as the nearest of these. Calendars and time zones go no further."""

_plain, _plain_ns = time.time, time.time_ns


def seconds() -> float:
    """Seconds since 1970, in place of `time.time`."""
    try:
        found = _plain()
    except OverflowError:
        found = time.clock_gettime(time.CLOCK_REALTIME)
    return min(max(found, EARLIEST), LATEST)


def nanoseconds() -> int:
    """Nanoseconds since 1970, in place of `time.time_ns`."""
    try:
        return _plain_ns()
    except OverflowError:
        return int(seconds()) * 10**9


def now() -> datetime:
    """The time in UTC."""
    return _EPOCH + timedelta(seconds=seconds())


def install() -> None:
    """Put both in the place of Python's own, for the libraries: before these are imported."""
    time.time, time.time_ns = seconds, nanoseconds
