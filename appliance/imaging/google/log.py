"""RTMR 0 of a TD of Google's: computed where files give its events, and else as a machine's log has
them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from appliance.attestation.case.event_log import Event
from appliance.attestation.measured.events import extend
from appliance.errors import ImageError
from appliance.imaging.google import hob
from appliance.imaging.predict.firmware import TDX_CFV, Firmware

EV_EFI_PLATFORM_FIRMWARE_BLOB2, EV_EFI_HANDOFF_TABLES2 = 0x8000000A, 0x8000000B
RTMR_0 = 1  # a CCEL counts registers from 1
_COMPUTED = {EV_EFI_HANDOFF_TABLES2: "hand-off blocks", EV_EFI_PLATFORM_FIRMWARE_BLOB2: "configuration volume"}


def rtmr0(events: Sequence[Event], firmware: Firmware, ram_gib: int) -> bytes:
    """Return RTMR 0 for a machine with so much memory. The blocks of memory and the configuration
    volume are computed from the firmware; boot variables, ACPI tables and the rest are the log's.

    Raises ImageError for a log that has not exactly one of each computed event.
    """
    own = [event for event in events if event.register == RTMR_0]
    for kind, what in _COMPUTED.items():
        if sum(event.kind == kind for event in own) != 1:
            raise ImageError(f"event log: {sum(event.kind == kind for event in own)} events of the {what} in RTMR 0, "
                             "expected one", hint="give the CCEL of a TD on Google's cloud")
    known = {EV_EFI_HANDOFF_TABLES2: hob.digest(firmware, ram_gib),
             EV_EFI_PLATFORM_FIRMWARE_BLOB2: hashlib.sha384(_configuration(firmware)).digest()}
    return extend([known.get(event.kind) or event.digests["sha384"] for event in own], "sha384")


def _configuration(firmware: Firmware) -> bytes:
    """Return the volume of variables in the firmware's file."""
    found = [each for each in firmware.tdx if each.kind == TDX_CFV]
    if len(found) != 1:
        raise ImageError(f"{firmware.what}: {len(found)} configuration volumes, expected one", code="image-firmware")
    return firmware.data[found[0].raw_at:found[0].raw_at + found[0].raw_size]
