"""The contents that a boot from the image's disk measures, out of its unified kernel image."""

from __future__ import annotations

from pydantic import ValidationError

from appliance.attestation.binding import describe
from appliance.attestation.measured import events
from appliance.attestation.measured.events import BootContents, BootEvent, ContentDigests
from appliance.errors import ImageError
from appliance.imaging.predict.pe import Pe
from appliance.imaging.predict.uki import Uki


def _program(pe: Pe) -> ContentDigests:
    return ContentDigests(sha256=pe.authenticode("sha256").hex(), sha384=pe.authenticode("sha384").hex())


def contents(uki: Uki, gpt: bytes) -> BootContents:
    """Return the digests of all that is measured; `gpt` is UEFI_GPT_DATA of the disk. Raises
    ImageError for a command line that is too long."""
    try:
        return BootContents(
            program=_program(uki.pe), kernel=_program(uki.kernel),
            sections={name: ContentDigests.of(uki.section(name)) for name in events.MEASURED},
            command_line=uki.section(".cmdline").decode("ascii"), initrd=ContentDigests.of(uki.initrd()),
            partitions=ContentDigests.of(gpt))
    except ValidationError as error:
        raise ImageError(f"unified kernel image: {describe(error)}") from None


def boot_events(uki: Uki, gpt: bytes) -> list[BootEvent]:
    """Return every event of the predicted registers, in the order of the boot."""
    return events.of(contents(uki, gpt))
