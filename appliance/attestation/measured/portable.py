"""A portable reference: one statement of an image, from which the rows of each platform are
derived.

Registers of a TPM and of a TD follow from the digests of what a boot measures. A launch digest of
SEV-SNP also depends on the firmware, the number of virtual CPUs and their model. A report does not
state them, but its digest does: all shapes are derived, and one of them has it, or none. So no word
of the attester about its shape is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from appliance.attestation.binding import Build, Frozen, Hex32, Hex48
from appliance.attestation.measured import events, launch
from appliance.attestation.measured.events import BootContents
from appliance.attestation.measured.fields import MAX_VCPUS, Bits64, Vcpus, Word
from appliance.attestation.measured.first import Golden, TpmPrediction
from appliance.attestation.measured.launch import LaunchFirmware
from appliance.attestation.measured.nitro import NitroPrediction
from appliance.attestation.measured.second import WHOLE, SnpRow, TdxRow
from appliance.codec.canonical import canonical

FORMAT = "appliance/reference/v1"
PROGRAM = "appliance.efi"  # the file that QEMU measures as the kernel
_SEPARATORS: Mapping[str, tuple[int, ...]] = {"predicted": (1,), "gce-endorsement": (1, 2)}  # in RTMR 1
_ROOT = re.compile(r"roothash=[0-9a-f]{64}")


def _model(name: str) -> str:
    if name not in launch.MODELS:
        raise ValueError(f"no launch can be derived for CPU model {name!r}; known: {', '.join(launch.MODELS)}")
    return name


def _firmware_alone(row: SnpRow) -> SnpRow:
    if row.image:
        raise ValueError("a row beside the statement covers the firmware alone: what covers the image is derived")
    return row


def _started(row: TdxRow) -> TdxRow:
    if row.image or row.rtmr[1:] != (None, None, None) or row.source not in _SEPARATORS:
        raise ValueError("a TDX row here is of a firmware, predicted or endorsed by Google: RTMR 1 to 3 are derived")
    return row


class SnpShapes(Frozen):
    """The SEV-SNP launches that the builder allows: by QEMU, with kernel hashes."""

    firmware: tuple[LaunchFirmware, ...] = Field(min_length=1, max_length=16)
    cpu_models: tuple[Annotated[Word, AfterValidator(_model)], ...] = Field(min_length=1, max_length=32)
    max_vcpus: Vcpus
    guest_features: Bits64

    def model(self, signature: int) -> str | None:
        """Return the first allowed CPU model with a signature."""
        return next((name for name in self.cpu_models if launch.signature(name) == signature), None)

    def words(self) -> str:
        """Return what is allowed, in words."""
        return (f"1 to {self.max_vcpus} vCPUs of {' or '.join(self.cpu_models)}, firmware "
                f"{' or '.join(f'sha256:{each.sha256}' for each in self.firmware)}")


class PortableReference(Frozen):
    """The whole file. `image` has the files' digests, `boot` what a boot from the disk measures.
    `tdx` has firmware alone; the registers above are derived. `firmware_rows` are launches of which
    no file derives the image."""

    format: Literal["appliance/reference/v1"]
    build: Build
    image: dict[Word, Hex32] = Field(max_length=64)
    policy_sha384: Hex48 | None
    boot: BootContents
    sev_snp: SnpShapes | None
    tdx: tuple[Annotated[TdxRow, AfterValidator(_started)], ...] = Field(max_length=64)
    firmware_rows: tuple[Annotated[SnpRow, AfterValidator(_firmware_alone)], ...] = Field(max_length=256)
    golden: tuple[Golden, ...] = Field(max_length=64)
    nitro: Annotated[bool, Field(strict=True)]

    @property
    def root_hash(self) -> str:
        """The verity root hash, which the command line fixes."""
        return self._roots()[0].removeprefix("roothash=")

    def _roots(self) -> list[str]:
        return [word for word in self.boot.command_line.split(" ") if word.startswith("roothash=")]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if PROGRAM not in self.image:
            raise ValueError(f"image: {PROGRAM} is absent, which QEMU measures as the kernel")
        roots = self._roots()
        if len(roots) != 1 or _ROOT.fullmatch(roots[0]) is None:
            raise ValueError("boot.command_line does not fix the root hash, once")
        return self

    def to_json(self) -> bytes:
        """The canonical form (RFC 8785), which is what is written and signed."""
        return canonical(self.model_dump(mode="json"))


def endorsed(reference: PortableReference, tds: tuple[TdxRow, ...], launches: tuple[SnpRow, ...]) -> PortableReference:
    """Return a reference with rows of a firmware that somebody else than the builder vouches for.
    A value of theirs has no second row, which would be of no security version. The builder's
    word on RTMR 0 beside it goes on to hold."""
    theirs, digests_of = {row.mrtd: row for row in tds}, {row.launch_digest for row in launches}
    strict = [row.model_copy(update={"svn": theirs[row.mrtd].svn}) for row in reference.tdx
              if row.mrtd in theirs and row.source == theirs[row.mrtd].source and row.rtmr[0] is not None]
    known = {row.mrtd for row in strict}
    return reference.model_copy(update={
        "tdx": (*(row for row in reference.tdx if row.mrtd not in theirs), *strict,
                *map(_started, (row for row in tds if row.mrtd not in known))),
        "firmware_rows": (*(row for row in reference.firmware_rows if row.launch_digest not in digests_of),
                          *map(_firmware_alone, launches))})


class _Launch(NamedTuple):
    """A launch of the image, of any shape that can be derived."""

    digest: bytes
    firmware: LaunchFirmware
    signature: int
    vcpus: int


def tdx_rows(reference: PortableReference) -> tuple[TdxRow, ...]:
    """Return the rows of a TD that boots the image from its disk."""
    log = events.of(reference.boot)
    return tuple(
        TdxRow.model_validate({**dict(row), "covers": WHOLE, "rtmr": (
            row.rtmr[0], *(value.hex() for value in events.rtmrs(log, separators)[1:]))})
        for row in reference.tdx for separators in _SEPARATORS[row.source])


def tpm(reference: PortableReference) -> TpmPrediction:
    """Return the registers of a TPM, with the golden values beside them."""
    return TpmPrediction.model_validate({**dict(events.pcrs(events.of(reference.boot))), "golden": reference.golden})


def nitro(reference: PortableReference) -> NitroPrediction | None:
    """Return the registers of a NitroTPM, if the builder allows one."""
    return events.nitro(events.of(reference.boot)) if reference.nitro else None


def launched(reference: PortableReference, digest: bytes) -> tuple[tuple[SnpRow, ...], str]:
    """Return the rows of a launch digest, and its shape in words; without a row the words say why.
    """
    alone = tuple(row for row in reference.firmware_rows if row.launch_digest == digest.hex())
    shapes = reference.sev_snp
    if alone or shapes is None:
        return alone, allowed(reference)
    found = next((each for each in _launches(reference, shapes) if each.digest == digest), None)
    if found is None:
        return (), f"no launch of this image has it, with 1 to {MAX_VCPUS} vCPUs of any known CPU model, and " \
                   f"firmware {' or '.join(f'sha256:{each.sha256}' for each in shapes.firmware)}"
    model = shapes.model(found.signature)
    if model is None or found.vcpus > shapes.max_vcpus:
        kin = next(name for name in launch.MODELS if launch.signature(name) == found.signature)
        return (), f"it is of {found.vcpus} vCPUs of {kin}, and the reference allows {shapes.words()}"
    return (_row(found, shapes, model),), f"{found.vcpus} vCPUs of {model}, firmware sha256:{found.firmware.sha256}"


def allowed(reference: PortableReference) -> str:
    """Return the shapes that the reference allows, in words."""
    return "no SEV-SNP launch is derived" if reference.sev_snp is None else f"derived for {reference.sev_snp.words()}"


def digests(reference: PortableReference) -> frozenset[bytes]:
    """Return the launch digests of all shapes that the reference allows."""
    shapes, alone = reference.sev_snp, {row.launch_digest for row in reference.firmware_rows}
    return frozenset() if shapes is None else frozenset(
        each.digest for each in _launches(reference, shapes)
        if each.vcpus <= shapes.max_vcpus and shapes.model(each.signature) and each.digest.hex() not in alone)


def _launches(reference: PortableReference, shapes: SnpShapes) -> Iterator[_Launch]:
    """Yield the launches of every shape that can be derived, allowed or not."""
    table = launch.hashes_table(bytes.fromhex(reference.image[PROGRAM]), launch.NO_INITRD, launch.NO_CMDLINE)
    features = int(shapes.guest_features, 16)
    for firmware in shapes.firmware:
        before = launch.before_cpus(firmware, table)
        for signature in sorted({launch.signature(name) for name in launch.MODELS}):
            for vcpus, digest in launch.with_cpus(before, firmware.reset_eip, signature, features):
                yield _Launch(digest, firmware, signature, vcpus)


def _row(found: _Launch, shapes: SnpShapes, model: str) -> SnpRow:
    return SnpRow(source="predicted", covers=WHOLE, svn=None, firmware_sha256=found.firmware.sha256,
                  firmware_sha384=None, vmm="qemu", vcpus=found.vcpus, cpu_model=model,
                  guest_features=shapes.guest_features, launch_digest=found.digest.hex(), id_block=None)
