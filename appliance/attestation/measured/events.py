"""The events of a boot from an image's disk, by digests of what is measured, and the registers that
they give: TPM PCRs and TDX RTMRs.

The boot is UEFI firmware (OVMF) with an empty variable store that starts \\EFI\\BOOT\\BOOTX64.EFI
from the image's system partition at its first attempt, without option ROMs and with Secure Boot
off. A host that does otherwise gets other values. Sources: TCG PC Client Platform Firmware Profile
1.06, section 3.3.4 (registers) and 10 (events); UEFI 2.10, section 38.4.1 (which RTMR stands for
which PCR); systemd-stub(7).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self
from uuid import UUID

from pydantic import StringConstraints, model_validator

from appliance.attestation.binding import Frozen, Hex32, Hex48
from appliance.attestation.measured.first import PREDICTED_PCRS, ZERO_PCRS, PcrEvent, TpmPrediction
from appliance.attestation.measured.nitro import NITRO_PCRS, NitroPrediction

MEASURED = (".linux", ".osrel", ".cmdline", ".initrd", ".uname", ".sbat")  # sections, in the order of the boot stub
_GLOBAL, _SECURITY = UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c"), UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
# The variables of Secure Boot in their order, while it is off: UEFI 2.10, sections 3.3 and 32.6
SECURE_BOOT_OFF = ((_GLOBAL, "SecureBoot", b"\x00"), (_GLOBAL, "PK", b""), (_GLOBAL, "KEK", b""),
                   (_SECURITY, "db", b""), (_SECURITY, "dbx", b""))
EV_SEPARATOR, EV_EVENT_TAG, EV_IPL = 0x4, 0x6, 0xD
EV_EFI_BOOT_SERVICES_APPLICATION, EV_EFI_GPT_EVENT, EV_EFI_ACTION = 0x80000003, 0x80000006, 0x80000007
SEPARATOR = bytes(4)
SEPARATED = (2, 3, 4, 5, 6)  # of the registers that are predicted here; firmware also separates 0, 1 and 7
CALLING = b"Calling EFI Application from Boot Option"
EXIT_CALLED = b"Exit Boot Services Invocation"
EXIT_DONE = b"Exit Boot Services Returned with Success"
CommandLine = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{1,4096}$")]


class ContentDigests(Frozen):
    """The digests of some content, as a TPM takes them and as a TD does."""

    sha256: Hex32
    sha384: Hex48

    @classmethod
    def of(cls, data: bytes) -> ContentDigests:
        """The digests of bytes."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), sha384=hashlib.sha384(data).hexdigest())

    def raw(self) -> dict[str, bytes]:
        """The digests by the name of their algorithm."""
        return {"sha256": bytes.fromhex(self.sha256), "sha384": bytes.fromhex(self.sha384)}


class BootContents(Frozen):
    """All that a boot from the image's disk measures. `program` and `kernel` are Authenticode
    digests; `sections` are those of the unified kernel image that its stub measures; `initrd` is
    what the stub hands to the kernel; `partitions` is UEFI_GPT_DATA of the disk."""

    program: ContentDigests
    kernel: ContentDigests
    sections: dict[str, ContentDigests]
    command_line: CommandLine
    initrd: ContentDigests
    partitions: ContentDigests

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if set(self.sections) != set(MEASURED):
            raise ValueError(f"sections are {', '.join(MEASURED)}, no more and no less")
        if self.sections[".cmdline"] != ContentDigests.of(self.command_line.encode("ascii")):
            raise ValueError("the section .cmdline is not the command line")
        return self


@dataclass(frozen=True)
class BootEvent:
    """One measurement: `digests` by algorithm name."""

    pcr: int
    kind: int
    what: str
    digests: dict[str, bytes]


def _of(pcr: int, kind: int, what: str, data: bytes) -> BootEvent:
    return BootEvent(pcr, kind, what, ContentDigests.of(data).raw())


def of(contents: BootContents) -> list[BootEvent]:
    """Return every event of the predicted registers, in the order of the boot."""
    found = [_of(4, EV_EFI_ACTION, f'action "{CALLING.decode()}"', CALLING)]
    found += [_of(pcr, EV_SEPARATOR, "separator: firmware hands over", SEPARATOR) for pcr in SEPARATED]
    found += [BootEvent(5, EV_EFI_GPT_EVENT, "partition table of the disk", contents.partitions.raw()),
              BootEvent(4, EV_EFI_BOOT_SERVICES_APPLICATION, "program appliance.efi", contents.program.raw())]
    for name in MEASURED:
        found += [_of(11, EV_IPL, f"name of section {name}", name.encode("ascii") + b"\x00"),
                  BootEvent(11, EV_IPL, f"content of section {name}", contents.sections[name].raw())]
    options = (contents.command_line + "\x00").encode("utf-16-le")  # as the stub hands it to the kernel
    found += [BootEvent(4, EV_EFI_BOOT_SERVICES_APPLICATION, "program kernel", contents.kernel.raw()),
              _of(9, EV_EVENT_TAG, "command line of the kernel", options),
              BootEvent(9, EV_EVENT_TAG, "initrd of the kernel", contents.initrd.raw())]
    return [*found, _of(5, EV_EFI_ACTION, f'action "{EXIT_CALLED.decode()}"', EXIT_CALLED),
            _of(5, EV_EFI_ACTION, f'action "{EXIT_DONE.decode()}"', EXIT_DONE)]


def extend(digests: Sequence[bytes], algorithm: str) -> bytes:
    """Return a register after these digests, from zero."""
    value = bytes(hashlib.new(algorithm).digest_size)
    for digest in digests:
        value = hashlib.new(algorithm, value + digest).digest()
    return value


def pcrs(log: Sequence[BootEvent]) -> TpmPrediction:
    """Return the TPM part of the measurements, without golden values."""
    values = {str(pcr): (extend([event.digests["sha256"] for event in log if event.pcr == pcr], "sha256").hex(),)
              for pcr in PREDICTED_PCRS}
    if any(event.pcr in ZERO_PCRS for event in log):
        raise AssertionError("nothing extends PCR 12 or PCR 13")
    return TpmPrediction(bank="sha256", pcrs=values, golden=(), events=tuple(
        PcrEvent(pcr=event.pcr, kind=event.kind, sha256=event.digests["sha256"].hex(), what=event.what)
        for event in sorted(log, key=lambda event: event.pcr)))


def rtmrs(log: Sequence[BootEvent], separators: int = 1) -> tuple[None, bytes, bytes, bytes]:
    """RTMR 0 to 3 of the same boot in a TD. RTMR 0 depends on what the VMM hands over and is not
    predicted.

    RTMR 1 takes PCR 2 to 6 and one separator for all of them (edk2, TdTcg2Dxe), or more where a
    firmware writes more. RTMR 2 takes PCR 8 to 15; nothing of ours extends RTMR 3.
    """
    first, left = [], separators
    for event in log:
        if 2 <= event.pcr <= 6 and (event.kind != EV_SEPARATOR or left):
            first.append(event.digests["sha384"])
            left -= event.kind == EV_SEPARATOR
    second = [event.digests["sha384"] for event in log if 8 <= event.pcr <= 15]
    return None, extend(first, "sha384"), extend(second, "sha384"), bytes(48)


def secure_boot_off(algorithm: str) -> bytes:
    """PCR 7 of a machine without keys of Secure Boot: UEFI_VARIABLE_DATA of each variable, then the
    separator."""
    measured = [vendor.bytes_le + struct.pack("<QQ", len(name), len(content)) + name.encode("utf-16-le") + content
                for vendor, name, content in SECURE_BOOT_OFF]
    return extend([hashlib.new(algorithm, each).digest() for each in (*measured, SEPARATOR)], algorithm)


def nitro(log: Sequence[BootEvent]) -> NitroPrediction:
    """Return the registers of a NitroTPM after the same boot on EC2, in the SHA-384 bank.

    AWS computes PCR 4 and PCR 7 by the same events (aws/NitroTPM-Tools). No image of ours was
    booted there.
    """
    values = {number: extend([event.digests["sha384"] for event in log if event.pcr == number], "sha384")
              for number in NITRO_PCRS}
    values[7] = secure_boot_off("sha384")
    return NitroPrediction(bank="sha384", pcrs={str(number): (value.hex(),) for number, value in values.items()})
