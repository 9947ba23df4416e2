"""Fuzz target: IGVM files of strangers. The first byte says whether the checksum of the rest is set right, so that
mutations get as far as the headers."""

from __future__ import annotations

import struct

from appliance.attestation.measured.launch import save_area
from appliance.errors import ImageError
from appliance.imaging.igvm import launch, reader, writer
from appliance.imaging.predict.firmware import parse
from tests.support import fake_firmware, fake_igvm


def _sealed(data: bytes) -> bytes:
    """The file with its own size and checksum."""
    if len(data) < 24:
        return data
    size = min(struct.unpack_from("<I", data, 12)[0], len(data) - 24)
    head = data[:16] + struct.pack("<I", len(data)) + data[20:24 + size]
    return fake_igvm.sealed(head, data[24 + size:])


def fuzz(data: bytes) -> None:
    """Read a file, and compute its launch; what was read can be written and read again."""
    raw = _sealed(data[1:]) if data[:1] == b"s" else data[1:]
    try:
        file = reader.parse(raw)
        found = launch.launch(file)
    except ImageError:
        return
    again = launch.launch(reader.parse(writer.write(file)))
    if again != found:
        raise AssertionError("the file that was written again is another launch")


def seeds() -> list[bytes]:
    """A small file, one with parameter areas, and one of firmware."""
    state = fake_igvm.save_area()
    small = [fake_igvm.platform(), fake_igvm.policy(), fake_igvm.page(0x1000, state), fake_igvm.page(0x2000),
             fake_igvm.page(0x3000, kind=1), fake_igvm.processor(0, state)]
    areas = [*small[:2], fake_igvm.area(0, 0x2000), (fake_igvm.VP_COUNT, bytes(8), b""), fake_igvm.insert(0, 0x10000),
             *small[2:]]
    firmware = parse(fake_firmware.firmware())
    pages = [fake_igvm.page((1 << 32) - len(firmware.data) + at, firmware.data[at:at + 4096])
             for at in range(0, len(firmware.data), 4096)]
    whole = [*small[:2], *pages, *(
        fake_igvm.processor(number, save_area(0xFFFFFFF0, 0x800F12, 1)) for number in range(2))]
    return [kind + fake_igvm.build(each) for kind in (b"s", b"r") for each in (small, areas, whole)]
