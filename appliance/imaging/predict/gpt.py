"""The partition table as firmware measures it into PCR 5: UEFI_GPT_DATA.

Sources: UEFI 2.10, section 5.3 (GPT); TCG PC Client Platform Firmware Profile 1.06, section 10.4.5
(EV_EFI_GPT_EVENT): the header, the number of partitions, and the entries that are in use.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from appliance.errors import ImageError

SECTOR = 512
HEADER_BYTES, ENTRY_BYTES, MAX_ENTRIES = 92, 128, 128
SIGNATURE = b"EFI PART"


def event(path: Path) -> bytes:
    """Return the event's bytes for the disk image in `path`. Raises ImageError if it has no sound
    GPT."""
    with path.open("rb") as file:
        file.seek(SECTOR)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[:8] != SIGNATURE:
            raise ImageError(f"{path}: no GUID partition table", hint="expected a disk image made by the builder")
        at, count, size, crc = struct.unpack_from("<QIII", header, 72)
        blank = header[:16] + bytes(4) + header[20:]
        if struct.unpack_from("<I", header, 12) != (HEADER_BYTES,) or zlib.crc32(blank) != int.from_bytes(
                header[16:20], "little"):
            raise ImageError(f"{path}: the partition table's header does not have its checksum")
        if size != ENTRY_BYTES or not 1 <= count <= MAX_ENTRIES:
            raise ImageError(f"{path}: {count} partition entries of {size} bytes",
                             hint=f"expected up to {MAX_ENTRIES} of {ENTRY_BYTES}")
        file.seek(at * SECTOR)
        table = file.read(count * size)
    if len(table) != count * size or zlib.crc32(table) != crc:
        raise ImageError(f"{path}: the partition entries do not have their checksum")
    entries = [table[number * size:(number + 1) * size] for number in range(count)]
    used = [entry for entry in entries if any(entry[:16])]  # a type of zeros is an unused entry
    return header + struct.pack("<Q", len(used)) + b"".join(used)
