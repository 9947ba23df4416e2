"""The rows of version 2. Each says where its value comes from, of which shape, and what it covers.

A row covers the firmware, or the firmware and the image. Only what is computed from the image's own
files can cover it: a launch digest with the page of kernel hashes, or RTMR 1 and RTMR 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from appliance.attestation.binding import Frozen, Hex32, Hex48
from appliance.attestation.measured.fields import Bits64, IdBlock, Number, Registers, Text, Vcpus, Word
from appliance.attestation.measured.first import SnpPrediction, TdxPrediction

Source = Literal["predicted", "gce-endorsement", "ec2", "azure-paravisor", "recorded"]
FIRMWARE: tuple[str, ...] = ("firmware",)
WHOLE: tuple[str, ...] = ("firmware", "image")
MAX_RAM_GIB = 1 << 16


def _parts(covers: tuple[str, ...]) -> tuple[str, ...]:
    if covers not in (FIRMWARE, WHOLE):
        raise ValueError('a row covers ["firmware"] or ["firmware","image"]')
    return covers


class SourcedRow(Frozen):
    """What every row says of its value. `svn` is the security version that an endorsement names."""

    source: Source
    covers: Annotated[tuple[str, ...], AfterValidator(_parts)]
    svn: Number | None
    firmware_sha256: Hex32 | None
    firmware_sha384: Hex48 | None

    @property
    def image(self) -> bool:
        """Whether the row says what was booted, and not only by which firmware."""
        return self.covers == WHOLE

    @model_validator(mode="after")
    def _endorsed(self) -> Self:
        if (self.svn is None) == (self.source == "gce-endorsement"):
            raise ValueError("svn is of a gce-endorsement, which has one")
        return self


class SnpRow(SourcedRow):
    """A launch digest of one shape of guest; `vcpus` is the number of save areas that it has."""

    vmm: Literal["qemu", "gce", "ec2", "hyperv"]
    vcpus: Vcpus
    cpu_model: Word | None
    guest_features: Bits64
    launch_digest: Hex48
    id_block: IdBlock | None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        own = self.source == "predicted" and self.vmm == "qemu"
        if self.image != own:
            raise ValueError(f"a launch digest of source {self.source} with vmm {self.vmm} covers "
                             f"{'firmware and image' if own else 'the firmware alone'}")
        if (self.cpu_model is None) == (self.vmm == "qemu"):
            raise ValueError("cpu_model is of vmm qemu, which has one")
        if self.id_block is not None and not own:
            raise ValueError("an ID block is of a predicted launch with vmm qemu")
        if _VMM_OF.get(self.source, self.vmm) != self.vmm:
            raise ValueError(f"source {self.source} is of vmm {_VMM_OF[self.source]}")
        return self


class TdxRow(SourcedRow):
    """An MRTD, and the RTMRs of the boot as far as they are known. `ram_gib` and `early_accept` are
    the shape that an MRTD or RTMR 0 depends on; null: it does not."""

    page_order: Literal["page", "section"] | None
    ram_gib: Annotated[int, Field(strict=True, ge=1, le=MAX_RAM_GIB)] | None
    early_accept: Annotated[bool, Field(strict=True)] | None
    mrtd: Hex48
    rtmr: Registers
    unverified: tuple[Text, ...] = Field(max_length=16)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.source == "ec2":
            raise ValueError("EC2 has no TDX")
        booted = self.rtmr[1] is not None and self.rtmr[2] is not None
        if self.image != booted:
            raise ValueError("a TDX row covers the image if it has RTMR 1 and RTMR 2, and only then")
        if self.image and self.source not in ("predicted", "gce-endorsement"):
            raise ValueError(f"a row of source {self.source} covers the firmware alone")
        return self


_VMM_OF: dict[str, str] = {"gce-endorsement": "gce", "ec2": "ec2", "azure-paravisor": "hyperv"}


def one_coverage(rows: Sequence[SnpRow]) -> None:
    """Raise ValueError if a launch digest stands for an image in one row, and for firmware alone in
    another."""
    whole = {row.launch_digest for row in rows if row.image}
    if twice := whole & {row.launch_digest for row in rows if not row.image}:
        raise ValueError(f"launch digest {min(twice)} covers the image in one row, and firmware alone in another")


def snp_row(row: SnpPrediction) -> SnpRow:
    """A row of version 1 as one of version 2."""
    return SnpRow(source="predicted", covers=WHOLE, svn=None, firmware_sha384=None, **dict(row))


def tdx_row(row: TdxPrediction) -> TdxRow:
    """A row of version 1 as one of version 2."""
    booted = row.rtmr[1] is not None and row.rtmr[2] is not None
    return TdxRow(source="predicted", covers=WHOLE if booted else FIRMWARE, svn=None, firmware_sha384=None,
                  ram_gib=None, early_accept=None, **dict(row))
