"""Quota counters on the state disk: written every second in which something was charged, and at the
end.

The snapshot is canonical JSON (docs/formats/state-disk.md). A host that kills the appliance can
take back what was charged in the last second, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping

from appliance.codec.canonical import canonical
from appliance.errors import StateError
from appliance.service.admission.limits import Account, Accounts
from appliance.state.disk import StateDisk

INTERVAL_SECONDS = 1.0
FORMAT, WITH_TENANTS = "appliance/quotas/v1", "appliance/quotas/v2"
Left = dict[str, list[list[int]]]  # of one account: what weighs on each window


def snapshot(accounts: Accounts) -> bytes:
    """All that weighs on any account: of version 1 where no tenant has one."""
    keys = _left({digest.hex(): account for digest, account in accounts})
    if not accounts.tenants:
        return canonical({"accounts": keys, "format": FORMAT})
    return canonical({"accounts": keys, "format": WITH_TENANTS, "tenants": _left(accounts.tenants)})


def _left(accounts: Mapping[str, Account]) -> dict[str, Left]:
    found = {name: {each: [list(pair) for pair in window.left()] for each, window in account.windows().items()}
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
                await asyncio.to_thread(self._disk.snapshot.replace_quotas, snapshot(self._accounts))
            except StateError as error:
                failed(error)
                return
            self._written = changes

    def finish(self) -> None:
        """The last snapshot; a disk that failed has none."""
        with contextlib.suppress(StateError):
            self._disk.snapshot.replace_quotas(snapshot(self._accounts))
