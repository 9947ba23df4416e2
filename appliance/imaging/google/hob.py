"""The hand-off blocks (TD HOB) with which Google's hypervisor tells a TD its memory. Firmware measures
them into RTMR 0.

Sources: UEFI Platform Initialization 1.8, volume 3 (hand-off blocks); google/gce-tcb-verifier,
ovmf/tdx_data.go and tdx/mrtd_from_ovmf.go, for order, attributes and banks of memory. Equal to what
public logs of machines with 16, 32, 88 and 176 GiB show; more than 176 GiB was not compared.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from appliance.errors import ImageError
from appliance.imaging.predict.firmware import Firmware

TD_HOB = 2  # the kind of the section that the blocks go into
GIB = 1 << 30
LOW_END, HIGH_START, NODE_BYTES = 3 * GIB, 4 * GIB, 176 * GIB
_SYSTEM_MEMORY, _UNACCEPTED = 0, 7
_TESTED, _EARLY = 0x7, 0x10000000  # present, initialized and tested; needs early accept
_HANDOFF, _RESOURCE = "<HHIIIQQQQQ", "<HHI16sIIQQ"

Range = tuple[int, int]  # start and length


def build(firmware: Firmware, ram_gib: int) -> bytes:
    """Return the blocks for a machine with so much memory. Raises ImageError for firmware without
    a place for them, or a machine with less than 4 GiB."""
    place = next((each.gpa for each in firmware.tdx if each.kind == TD_HOB), None)
    if place is None:
        raise ImageError(f"{firmware.what}: has no section for hand-off blocks", code="image-firmware")
    if ram_gib * GIB <= LOW_END:
        raise ImageError(f"{ram_gib} GiB of memory: a TD of Google's has more than {LOW_END // GIB}")
    accepted = [(each.gpa, each.size) for each in firmware.tdx]
    blocks = b"".join((*(_resource(_SYSTEM_MEMORY, _TESTED, each) for each in accepted),
                       *(_resource(_UNACCEPTED, _TESTED | _EARLY, each) for each in _unaccepted(accepted, ram_gib))))
    size = struct.calcsize(_HANDOFF)
    return struct.pack(_HANDOFF, 1, size, 0, 9, 0, 0, 0, 0, 0, place + size + len(blocks)) + blocks


def digest(firmware: Firmware, ram_gib: int) -> bytes:
    """Return the SHA-384 of the blocks, which RTMR 0 is extended by."""
    return hashlib.sha384(build(firmware, ram_gib)).digest()


def _unaccepted(accepted: list[Range], ram_gib: int) -> Iterator[Range]:
    """Yield the memory that the firmware has not taken: below 3 GiB, then above 4 GiB node by node."""
    at = 0
    for start, length in sorted(each for each in accepted if each[0] < LOW_END):
        if start > at:
            yield at, start - at
        at = max(at, start + length)
    if at < LOW_END:
        yield at, LOW_END - at
    start, left, room = HIGH_START, ram_gib * GIB - LOW_END, NODE_BYTES - LOW_END
    while left:
        length = min(left, room)
        yield start, length
        start, left, room = start + length, left - length, NODE_BYTES


def _resource(kind: int, attributes: int, memory: Range) -> bytes:
    return struct.pack(_RESOURCE, 3, struct.calcsize(_RESOURCE), 0, b"", kind, attributes, *memory)
