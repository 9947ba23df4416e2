"""The registers of a NitroTPM that an image gives: of the SHA-384 bank, which AWS's documents have.

PCR 0 and PCR 1 are constants of AWS's, which say nothing of its firmware, and PCR 5 has the boot
menu of an instance: they are not predicted. All others that tell of a boot are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from appliance.attestation.binding import Frozen, Hex48
from appliance.attestation.measured.first import ZERO_PCRS, PcrName

NITRO_PCRS = (2, 3, 4, 6, 7, 9, 11, 12, 13)
_ZERO = "00" * 48


class NitroPrediction(Frozen):
    """PCRs in the SHA-384 bank: the values that are accepted for each."""

    bank: Literal["sha384"]
    pcrs: dict[PcrName, Annotated[tuple[Hex48, ...], Field(min_length=1, max_length=16)]]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if set(self.pcrs) != {str(number) for number in NITRO_PCRS}:
            raise ValueError(f"predicted PCRs of a NitroTPM are {', '.join(map(str, NITRO_PCRS))}, no more and no less")
        if any(self.pcrs[str(number)] != (_ZERO,) for number in ZERO_PCRS):
            raise ValueError("PCR 12 and PCR 13 are zero")
        return self

    def accepted(self) -> Mapping[int, frozenset[bytes]]:
        """PCR number to the values that are accepted."""
        return {int(name): frozenset(map(bytes.fromhex, values)) for name, values in self.pcrs.items()}
