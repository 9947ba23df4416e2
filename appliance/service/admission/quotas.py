"""Quota counters on the state disk: written every second in which something was charged, and at the
end.

The snapshot is canonical JSON (docs/formats/state-disk.md). A host that kills the appliance can
take back what was charged in the last second, no more. Where a snapshot does not fit, times are
rounded more coarsely: charges weigh longer than they should, never shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence

from appliance.codec.canonical import canonical
from appliance.errors import PolicyError, StateError
from appliance.policy.schema import Tenant
from appliance.service.admission.limits import LAST, Account, Accounts, Rates, limits_of
from appliance.state.disk import MOST_QUOTAS, StateDisk

INTERVAL_SECONDS = 1.0
FORMAT, WITH_TENANTS = "appliance/quotas/v1", "appliance/quotas/v2"
STEPS = (1, 2, 4, LAST)  # parts of a window to which times are rounded up: the last leaves one pair a window
Left = dict[str, list[list[int]]]  # of one account: what weighs on each window


def snapshot(accounts: Accounts, most: int = MOST_QUOTAS) -> bytes:
    """All that weighs on any account, rounded no more coarsely than `most` bytes need."""
    for step in STEPS:
        found = _document(_left({digest.hex(): account for digest, account in accounts}, step),
                          _left(accounts.tenants, step) if accounts.tenants else None)
        if len(found) <= most:
            break
    return found


def require_room(rates: Rates, tenants: Sequence[Tenant], most: int) -> None:
    """PolicyError for tenants whose quotas would not fit into `most` bytes, if all were used up."""
    keys = [key for each in tenants for key in each.api_key_sha256]
    limited = {name: _full(each) for name, each in limits_of(tenants).items()}
    nbytes = len(_document({} if rates == Rates() else dict.fromkeys(keys, _full(rates)), limited or None))
    if nbytes > most:
        raise PolicyError(f"quotas of {len(keys)} API keys and of {len(limited)} tenants with limits may take {nbytes} "
                          f"bytes of the state disk; at most {most}", code="tenants-quotas",
                          hint="list fewer keys, or fewer tenants with limits of their own")


def _full(rates: Rates) -> Left:
    named = {"requests": rates.requests_per_minute, "minute": rates.tokens_per_minute, "day": rates.tokens_per_day}
    return {name: [] if limit is None else [[LAST, limit]] for name, limit in named.items()}


def _document(keys: Mapping[str, Left], tenants: Mapping[str, Left] | None) -> bytes:
    """Version 1 where no tenant has limits."""
    if tenants is None:
        return canonical({"accounts": keys, "format": FORMAT})
    return canonical({"accounts": keys, "format": WITH_TENANTS, "tenants": tenants})


def _left(accounts: Mapping[str, Account], step: int) -> dict[str, Left]:
    found = {name: {each: [list(pair) for pair in window.left(step)] for each, window in account.windows().items()}
             for name, account in accounts.items()}
    return {name: left for name, left in found.items() if any(left.values())}


def restore(accounts: Accounts, data: bytes, known: Collection[bytes]) -> None:
    """Put back what `snapshot` wrote, for keys that are still known and tenants with limits.
    StateError for anything else than a snapshot."""
    if not data:
        return
    try:
        value = json.loads(data)
        if value["format"] not in (FORMAT, WITH_TENANTS):
            raise ValueError(value["format"])
        for text, left in value["accounts"].items():
            digest = bytes.fromhex(text)
            if digest in known:
                _restore(accounts.of(digest), left)
        for name, left in value["tenants"].items() if value["format"] == WITH_TENANTS else ():
            if name in accounts.tenants:
                _restore(accounts.tenants[name], left)
    except (ValueError, TypeError, LookupError, AttributeError):
        raise StateError("the state disk's snapshot is not one of quotas", code="state-snapshot",
                         hint="another version wrote it") from None


def _restore(account: Account, left: Left) -> None:
    for name, window in account.windows().items():
        window.restore((int(parts), int(amount)) for parts, amount in left[name])


class Snapshots:
    """Writes the snapshot while the service runs."""

    def __init__(self, accounts: Accounts, disk: StateDisk) -> None:
        self._accounts, self._disk = accounts, disk
        self._written = accounts.changes

    async def run(self, failed: Callable[[StateError], None]) -> None:
        """Until it is cancelled, or the disk fails: then `failed` is called."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            changes = self._accounts.changes
            if changes == self._written:
                continue
            try:
                await asyncio.to_thread(self._disk.snapshot.replace_quotas,
                                        snapshot(self._accounts, self._disk.most_quotas))
            except StateError as error:
                failed(error)
                return
            self._written = changes

    def finish(self) -> None:
        """The last snapshot; a disk that failed has none."""
        with contextlib.suppress(StateError):
            self._disk.snapshot.replace_quotas(snapshot(self._accounts, self._disk.most_quotas))
