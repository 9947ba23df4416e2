"""The places on a state disk for its own key, as a TPM sealed it. Spec: docs/formats/state-key.md.

There are two, so that one stays whole while the other is written: that of the image which runs, and
that of its successor. Nobody needs to protect them: the TPM decides which one opens.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.attestation.tpm.chip import seal
from appliance.errors import StateError
from appliance.keys.release.release import OwnKey
from appliance.policy.schema import Policy
from appliance.state import frames
from appliance.state.device import PAGE, Device
from appliance.state.disk import require_size
from appliance.state.slots import is_blank

PLACES: Final = (frames.SLOT_BYTES - PAGE, 2 * frames.SLOT_BYTES - PAGE)  # the last page of each slot
MAX_SAVED: Final = frames.MAX_SAVED - PAGE  # bytes of a snapshot that leaves them alone
_SIZE = struct.Struct("<I")


@dataclass(frozen=True)
class SealedKey:
    """The two places as they were read, whether anything was ever written under a key of theirs,
    and the files that are to be written into them: empty for a place that stays."""

    pages: tuple[bytes, ...]
    used: bool
    fresh: tuple[bytes, ...] = ()

    @property
    def files(self) -> tuple[bytes, ...]:
        """The file in each place, empty where there is none that counts. Neither size nor content
        is to be believed."""
        return tuple(page[_SIZE.size:][:min(_SIZE.unpack_from(page)[0], seal.MAX_BYTES + 1)] if self.used else b""
                     for page in self.pages)

    @property
    def remark(self) -> str:
        """A word for the boot's report; empty where nothing is written."""
        if not self.used:
            return ", made here"
        return ", sealed for the successor as well" if any(self.fresh) else ""

    def write(self, device: Device) -> None:
        """Write what is fresh, before anything is written under the key. StateError where the disk
        fails, or its places are not as they were read."""
        for at, page, file in zip(PLACES, self.pages, self.fresh, strict=False):
            if not file:
                continue
            if device.read_anew(at, PAGE) != page:
                raise StateError("the state disk's sealed key is another than a moment ago", code="state-shared",
                                 hint="give each appliance a disk of its own")
            try:
                device.write(at, (_SIZE.pack(len(file)) + file).ljust(PAGE, b"\0"))
            except OSError as error:
                raise StateError(f"state disk: {error.strerror}", code="state-broken") from None


def read(policy: Policy) -> SealedKey | None:
    """Read the places of a policy's disk; None where its key is not in a TPM.

    StateError where the disk cannot be read, or is in use and has no sealed key: a new one would
    open nothing of it.
    """
    if policy.state is None or policy.state.key.provider != "tpm":
        return None
    path = Path(policy.state.device)
    device = Device(path)
    try:
        require_size(path, device.size)
        found = SealedKey(tuple(device.read(at, PAGE) for at in PLACES), used=not is_blank(device))
        if found.used and not any(found.files):
            raise StateError(f"{path} is in use, and has no key that a TPM sealed", code="state-key-absent",
                             hint="name the key provider that the disk was made with; or attach a blank disk, for a "
                             "new log")
        return found
    finally:
        device.close()


def own_key(found: SealedKey | None, successor: Mapping[int, bytes]) -> OwnKey | None:
    """Return what is asked of the TPM about the key of these places."""
    return None if found is None else OwnKey(found.files, successor)
