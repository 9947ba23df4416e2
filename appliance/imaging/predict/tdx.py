"""MRTD of a TDX launch, computed only from firmware.

Sources: Intel TDX module ABI (TDH.MEM.PAGE.ADD, TDH.MR.EXTEND). MRTD is SHA-384 over one record of
128 bytes for each page that is added, and one for each 256 bytes that are extended, followed by
those bytes. Intel "TDX Virtual Firmware Design Guide", section 11, for what a section wants. A VMM
may add and extend page by page, or add a whole section first: both are given, and which one it is
was not compared with hardware here.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Literal

from appliance.errors import ImageError
from appliance.imaging.predict.firmware import (
    PAGE,
    TDX_BFV,
    TDX_EXTEND,
    TDX_PAGE_AUG,
    TDX_PERM_MEM,
    Firmware,
    TdxSection,
)

Order = Literal["page", "section"]
ORDERS: tuple[Order, ...] = ("page", "section")
CHUNK = 256
UNVERIFIED = (
    "no value of this entry was compared with TDX hardware",
    "page order: whether the VMM adds and extends each page in turn, or a section at a time, is not verified",
    "RTMR 0 is not computed: it depends on the memory map, variables and ACPI tables that the VMM hands over",
    "RTMR 1 and RTMR 2 are for a boot from the image's disk; their events were compared on a TPM, not in a TD",
)


def mrtd(firmware: Firmware, order: Order) -> bytes:
    """MRTD (48 bytes). Raises ImageError unless the firmware's code is measured."""
    if not firmware.tdx:
        raise ImageError(f"{firmware.what}: has no TDX metadata, so no TD starts from it", code="image-firmware",
                         hint="use an OVMF build with TDX support, such as OVMF.fd of Debian trixie's ovmf")
    if not any(each.kind == TDX_BFV and each.attributes & TDX_EXTEND for each in firmware.tdx):
        raise ImageError(f"{firmware.what}: does not ask that its own code is measured", code="image-firmware")
    digest = hashlib.sha384()
    for section in firmware.tdx:
        if section.kind == TDX_PERM_MEM or section.attributes & TDX_PAGE_AUG:
            continue  # added after the measurement is final
        _section(digest, firmware.data, section, order)
    return digest.digest()


def _section(digest: hashlib._Hash, data: bytes, section: TdxSection, order: Order) -> None:
    content = data[section.raw_at:section.raw_at + section.raw_size].ljust(section.size, b"\x00")
    extended = bool(section.attributes & TDX_EXTEND)
    for at in range(0, section.size, PAGE):
        digest.update(_record(b"MEM.PAGE.ADD", section.gpa + at))
        if extended and order == "page":
            _extend(digest, section.gpa + at, content[at:at + PAGE])
    if extended and order == "section":
        _extend(digest, section.gpa, content)


def _extend(digest: hashlib._Hash, gpa: int, content: bytes) -> None:
    for at in range(0, len(content), CHUNK):
        digest.update(_record(b"MR.EXTEND", gpa + at))
        digest.update(content[at:at + CHUNK])


def _record(operation: bytes, gpa: int) -> bytes:
    return operation.ljust(16, b"\x00") + struct.pack("<Q", gpa) + bytes(104)
