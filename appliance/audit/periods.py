"""Keys of the log's periods: records of requests are sealed under them, and they are destroyed when
their time is over.

The sealed record stays a leaf of the tree, so the log verifies as before. Its fields are gone with
the key. A period's key comes of the disk's secret and a random seed. The seed stands on the disk
alone, where it is overwritten. Each record is sealed under a key of its own, derived from its
period's: who is given that key reads this record, and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance import hostclock
from appliance.audit import retained
from appliance.audit.fields import Value
from appliance.codec.canonical import canonical
from appliance.secure.derivation import hkdf_into
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe

PURPOSE: Final = b"audit-period\n"  # of a key from the disk's secret; its seed follows
PAD_BYTES: Final = 256   # sealed fields are multiples of this, so that their size tells little
SEED_BYTES, TAG_BYTES = 32, 16
Seeds = list[tuple[int, bytes]]  # of each period its number, which is its beginning in seconds since 1970; its seed


@dataclass
class Period:
    """One period, and its key of 32 bytes."""

    number: int
    key: bytearray = field(repr=False)

    def cipher(self, boot: bytes, seq: int) -> AESGCM:
        """The cipher of one boot's record: one key a record, also on a disk that is put back."""
        derived = SecretBytes(retained.KEY_BYTES)
        hkdf_into(derived, self.key, boot, retained.info(self.number, seq))
        return AESGCM(derived)


class Periods:
    """The periods of one log. Safe under the log's lock alone."""

    def __init__(self, retention_ms: int, seeds: Seeds, *, derive: Callable[[bytes], bytearray],
                 draw: Callable[[int], bytes], keep: Callable[[Seeds], None]) -> None:
        """`seeds`: those on the disk. `derive` makes a key from a seed, `draw` random bytes. `keep`
        brings seeds onto the disk in place of all that were there; what it leaves out is gone."""
        self._retention = max(1, retention_ms // 1000)
        self._derive, self._draw, self._keep = derive, draw, keep
        self._seeds = sorted(seeds)
        self._opened: dict[int, Period] = {}
        newest = max((number for number, _ in seeds), default=0)
        self._floor, self._since = max(newest, int(hostclock.seconds())), time.monotonic()

    def now(self) -> int:
        """Seconds since 1970 by the host's clock, which does not go back here: not over a boot's
        time, and not before the newest period's beginning."""
        return max(int(hostclock.seconds()), self._floor + int(time.monotonic() - self._since))

    def seal(self, boot: bytes, seq: int, event: str, fields: Mapping[str, Value]) -> dict[str, Value]:
        """A record's fields in place of its own: the period's number, and the sealed ones in hex.
        """
        period = self._current()
        plain = canonical(dict(fields))
        plain += b" " * (-len(plain) % PAD_BYTES)
        sealed = period.cipher(boot, seq).encrypt(retained.NONCE, plain, retained.bound(event, seq))
        return {"period": period.number, "sealed": sealed.hex()}

    def expire(self) -> list[int]:
        """Destroy the keys whose time is over. Returns their numbers, once all are gone."""
        now = self.now()
        over = [number for number, _ in self._seeds if number + self._retention <= now]
        if over:
            self._seeds = [each for each in self._seeds if each[0] not in over]
            self._keep(self._seeds)
            for number in over:
                self._forget(number)
        return over

    def wipe(self) -> None:
        """Overwrite all keys in memory."""
        for number in list(self._opened):
            self._forget(number)

    def _forget(self, number: int) -> None:
        found = self._opened.pop(number, None)
        if found is not None:
            wipe(found.key)

    def _current(self) -> Period:
        now = self.now()
        if not self._seeds or now - self._seeds[-1][0] >= retained.period_seconds(self._retention):
            self._seeds.append((now, self._draw(SEED_BYTES)))
            self._keep(self._seeds)
        number, seed = self._seeds[-1]
        if number not in self._opened:
            for other in list(self._opened):
                self._forget(other)
            self._opened[number] = Period(number, self._derive(seed))
        return self._opened[number]

