"""The version of the tenant list on a state disk: in both slots, never lower again, beside what was there before."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.state.disk import StateDisk
from appliance.state.frames import MIN_DISK_BYTES, SLOT_BYTES
from appliance.state.snapshot import Snapshot
from tests.support import state_by_spec

SECRET = bytes(range(1, 33))
QUOTAS = b'{"accounts":{},"format":"appliance/quotas/v1"}'
SEED = {7: b"\x05" * 32}


def _open(path: Path) -> StateDisk:
    if not path.exists():
        path.write_bytes(b"")
        os.truncate(path, MIN_DISK_BYTES)
    return StateDisk(path, Secret(bytearray(SECRET)))


def _saved(path: Path) -> list[bytes]:
    """The snapshots in both slots, by the specification's reader."""
    data = path.read_bytes()
    found = [state_by_spec.slot(SECRET, data[at:at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
    return [each["saved"] for each in found if each is not None]


def test_both_slots_have_it_before_it_counts(tmp_path: Path) -> None:
    """So whichever of them a host spoils, the other one knows; without a list a snapshot is what it was before."""
    path = tmp_path / "disk"
    with closing(_open(path)) as disk:
        disk.snapshot.replace_quotas(QUOTAS)
        assert [b"", QUOTAS] == sorted(_saved(path))
        disk.snapshot.advance_list(3)
        whole = {"audit_periods": {}, "format": "appliance/snapshot/v3", "quotas": json.loads(QUOTAS), "tenant_list": 3}
        assert [whole, whole] == [json.loads(each) for each in _saved(path)]
        disk.snapshot.replace_seeds(list(SEED.items()))
        disk.snapshot.replace_quotas(QUOTAS)
    for spoilt in (0, SLOT_BYTES):
        copy = tmp_path / f"copy-{spoilt}"
        data = bytearray(path.read_bytes())
        data[spoilt + 80] ^= 1
        copy.write_bytes(data)
        with closing(_open(copy)) as disk, pytest.raises(StateError, match="version 2, and version 3 was") as caught:
            disk.snapshot.advance_list(2)
        assert "tenants-version" == caught.value.code
    with closing(_open(path)) as disk:
        disk.snapshot.advance_list(3)
        disk.snapshot.advance_list(9)
        assert (QUOTAS, list(SEED.items())) == (disk.snapshot.quotas, disk.snapshot.seeds)
        with pytest.raises(StateError, match="version 8, and version 9 was in force"):
            disk.snapshot.advance_list(8)


@pytest.mark.parametrize("change", [
    {"tenant_list": None}, {"tenant_list": "3"}, {"tenant_list": True}, {"tenant_list": -1}, {"tenant_list": 3.5},
    {"format": "appliance/snapshot/v2"}, {"more": 1}, {"audit_periods": []}, {"audit_periods": {"7": "05"}},
])
def test_another_form_is_refused(change: dict[str, Any]) -> None:
    """Nothing of it is believed in part."""
    whole = {"audit_periods": {}, "format": "appliance/snapshot/v3", "quotas": None, "tenant_list": 3, **change}
    with pytest.raises(StateError) as caught:
        Snapshot(json.dumps(whole).encode(), lambda _: None)
    assert "state-snapshot" == caught.value.code
