"""A state disk that somebody altered, or put back as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from appliance.drills.scene import Scene
from appliance.errors import StateError
from appliance.keys.providers import FileKey
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, LOG_AT

DISK_BYTES = 4 << 20
_IN_A_RECORD = 100  # bytes after the log's begin


def tampered(scene: Scene) -> None:
    """A byte of the log is altered; a copy of another day is put back."""
    disk = scene.folder / "state.disk"
    disk.write_bytes(bytes(DISK_BYTES))
    scene.run("model", "key", "state.key")
    _boot(scene, disk, b"first boot")
    shutil.copy(disk, scene.folder / "yesterday.disk")
    _boot(scene, disk, b"second boot")
    scene.step("As it should be: each record authenticates, and the epoch is the number of boots.")
    scene.expect(_epoch(scene, "state.disk"), 2, "the epoch")
    scene.step("Somebody alters a byte of a record. From now on the disk opens nowhere:")
    data = bytearray(disk.read_bytes())
    data[LOG_AT + _IN_A_RECORD] ^= 1
    (scene.folder / "altered.disk").write_bytes(data)
    scene.run("state", "altered.disk", "--key", "state.key", code=2, says="state-tampered")
    try:
        _boot(scene, scene.folder / "altered.disk", b"third boot")
    except StateError as error:
        scene.tell(f"    and so does a boot: error[{error.code}]")
    else:
        scene.expect("opened", "refused", "a boot with the altered disk")
    scene.step("Yesterday's copy opens: the disk by itself does not show a rollback. The epoch does:")
    scene.expect(_epoch(scene, "yesterday.disk"), 1, "the epoch of the copy")
    scene.tell("  A monitor that saw epoch 2 of this disk knows from epoch 1 that it was put back.")


def _boot(scene: Scene, disk: Path, line: bytes) -> None:
    """Open a disk as a boot does, and write a record."""
    opened = StateDisk(disk, FileKey(scene.folder / "state.key").key())
    opened.append(AUDIT, line * 64 + b"\n")
    opened.close()


def _epoch(scene: Scene, name: str) -> int:
    return int(json.loads(scene.run("state", name, "--key", "state.key", "--json"))["epoch"])
