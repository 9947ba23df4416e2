"""The rows of version 1. Each value of theirs is predicted from files, and covers the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from appliance.attestation.binding import Frozen, Hex32, Hex48
from appliance.attestation.measured.fields import Bits64, IdBlock, Number, Registers, Text, Vcpus, Word

PREDICTED_PCRS = (2, 3, 4, 5, 6, 9, 11, 12, 13)
GOLDEN_PCRS = (0, 7)
ZERO_PCRS = (12, 13)  # the boot stub extends them by what the host adds to command line and initrd: nothing may be

PcrName = Annotated[str, StringConstraints(strict=True, pattern=r"^([0-9]|1[0-9]|2[0-3])$")]
Register = Annotated[int, Field(strict=True, ge=0, le=23)]


class SnpPrediction(Frozen):
    """The launch digest of one shape of guest."""

    vmm: Literal["qemu"]
    vcpus: Vcpus
    cpu_model: Word
    guest_features: Bits64
    firmware_sha256: Hex32
    launch_digest: Hex48
    id_block: IdBlock | None


class TdxPrediction(Frozen):
    """MRTD of one firmware in one order of its pages, and the RTMRs as far as files give them."""

    firmware_sha256: Hex32
    page_order: Literal["page", "section"]
    mrtd: Hex48
    rtmr: Registers
    unverified: tuple[Text, ...] = Field(max_length=16)


class Golden(Frozen):
    """Registers that were read on a machine of this shape, since no file gives them."""

    machine: Word
    firmware_sha256: Hex32
    pcrs: dict[PcrName, Hex32] = Field(max_length=24)

    @model_validator(mode="after")
    def _registers(self) -> Self:
        if set(self.pcrs) != {str(number) for number in GOLDEN_PCRS}:
            raise ValueError("golden values are of PCR 0 and PCR 7, no more and no less")
        return self


class PcrEvent(Frozen):
    """One measurement that a predicted register is made of, in the order of extension."""

    pcr: Register
    kind: Number
    sha256: Hex32
    what: Text


class TpmPrediction(Frozen):
    """PCRs in the SHA-256 bank: the values that are accepted for each, and the events that give the
    first of them."""

    bank: Literal["sha256"]
    pcrs: dict[PcrName, Annotated[tuple[Hex32, ...], Field(min_length=1, max_length=16)]]
    golden: tuple[Golden, ...] = Field(max_length=64)
    events: tuple[PcrEvent, ...] = Field(max_length=256)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if set(self.pcrs) != {str(number) for number in PREDICTED_PCRS}:
            raise ValueError(f"predicted PCRs are {', '.join(map(str, PREDICTED_PCRS))}, no more and no less")
        if any(self.pcrs[str(number)] != ("00" * 32,) for number in ZERO_PCRS):
            raise ValueError("PCR 12 and PCR 13 are zero")
        names = [shape.machine for shape in self.golden]
        if names != sorted(set(names)):
            raise ValueError("golden machines are not in ascending order of name, each once")
        return self

    def accepted(self) -> Mapping[int, frozenset[bytes]]:
        """PCR number to the values that the files give, without the golden ones."""
        return {int(name): frozenset(map(bytes.fromhex, values)) for name, values in self.pcrs.items()}
