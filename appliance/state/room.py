"""How the log's room on a state disk is divided.

Most of it is for everything. Its last part is kept for the records of tenants, and the operator is
told when that is reached. Behind it is a little that only the log's own records may take: those of
the service's end, and of some boots after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OWN_BYTES: Final = 128 << 10         # for the log's own records
UNDER_WAY_BYTES: Final = 64 << 10    # for the ends of answers in progress, when no further request is let in
BOOT_BYTES: Final = 32 << 10         # without which no boot begins: one writes some tens of records
RESERVE_SHARE, RESERVE_MOST = 4, 64 << 20  # a quarter of the log's room is kept for tenants, and so many bytes at most

STATES = AMPLE, RESERVE, FULL = "ample", "reserve", "full"


@dataclass(frozen=True)
class LogRoom:
    """The log's room: all of it, and what is free, in bytes."""

    whole: int
    free: int

    @property
    def others(self) -> int:
        """Bytes for records that are not the log's own."""
        return self.free - OWN_BYTES

    @property
    def state(self) -> str:
        """`ample`; `reserve` where what is left is kept for tenants; `full` where no further
        request is let in."""
        if self.others < UNDER_WAY_BYTES:
            return FULL
        return RESERVE if self.free < min(self.whole // RESERVE_SHARE, RESERVE_MOST) + OWN_BYTES else AMPLE
