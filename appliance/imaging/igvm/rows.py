"""An image's IGVM file: exported from its folder, and read back for a row of measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.attestation import keyfile
from appliance.attestation.measured.first import SnpPrediction
from appliance.errors import ImageError
from appliance.imaging.igvm import headers, launch, layout, reader, writer
from appliance.imaging.igvm.launch import Launch
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import idblock, predict, snp
from appliance.imaging.predict import uki as predict_uki
from appliance.imaging.predict.firmware import Firmware
from appliance.imaging.recipe import manifest
from appliance.policy import inputfile

EFI = "appliance.efi"


@dataclass(frozen=True)
class IgvmOptions:
    """The firmware and the shape of a guest."""

    firmware: Path
    vcpus: int = 1
    cpu_model: str = "EPYC-v4"
    guest_policy: int = idblock.STRICT_POLICY


def export(folder: Path, options: IgvmOptions, output: Path) -> int:
    """Write the image's launch to a file, and return its size in bytes. Raises ImageError."""
    predict.checked_files(folder, manifest.read(folder), (EFI,))
    kernel = predict_uki.parse((folder / EFI).read_bytes()).pe.data
    firmware = predict_firmware.parse(_read(options.firmware), f"firmware {options.firmware}")
    data = writer.write(layout.make(firmware, kernel, vcpus=options.vcpus, signature=snp.signature(options.cpu_model),
                                    policy=options.guest_policy))
    keyfile.write_whole(output, data)
    return len(data)


def read(path: Path) -> Launch:
    """Read a file, and return its launch on SEV-SNP. Raises ImageError."""
    what = f"IGVM file {path}"
    return launch.launch(reader.parse(_read(path, reader.MAX_BYTES + 1), what), what)


def predictions(paths: Sequence[Path], firmware: Path, cpu_models: Sequence[str],
                kernel: bytes) -> tuple[SnpPrediction, ...]:
    """Return a row of measurements for each file.

    Such a row covers the image. So a file has to lay out what `export` does for this kernel and
    for the firmware that the builder names, page by page. Raises ImageError for any other.
    """
    named = predict_firmware.parse(_read(firmware), f"firmware {firmware}")
    return tuple(_prediction(path, named, cpu_models, kernel) for path in paths)


def _prediction(path: Path, firmware: Firmware, cpu_models: Sequence[str], kernel: bytes) -> SnpPrediction:
    found = read(path)
    if found.firmware() != firmware.data:
        raise ImageError(f"IGVM file {path}: its firmware has SHA-256 {_sha256(found.firmware())}, and that of "
                         f"--firmware {_sha256(firmware.data)}", code="image-igvm",
                         hint="write the file again with that firmware: appliance image export DIR --igvm")
    expected = layout.make(firmware, kernel, vcpus=len(found.save_areas), signature=found.signature, policy=0,
                           guest_features=found.guest_features)
    wanted = launch.launch(expected)
    if (wanted.save_areas, _bare(wanted)) != (found.save_areas, _bare(found)):
        raise ImageError(f"IGVM file {path}: it does not lay out this image's launch, so no row of it covers the image",
                         code="image-igvm", hint="write one: appliance image export DIR --igvm OVMF.amdsev.fd -o FILE")
    return SnpPrediction(vmm="qemu", vcpus=len(found.save_areas), cpu_model=_model(path, found, cpu_models),
                         guest_features=f"{found.guest_features:#x}",
                         firmware_sha256=_sha256(firmware.data), launch_digest=found.digest.hex(),
                         id_block=None)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bare(found: Launch) -> list[tuple[int, int, bool, bytes]]:
    """The pages without the bit of their platform."""
    return [(each.gpa, each.kind, each.unmeasured, each.content or bytes(headers.PAGE)) for each in found.pages]


def _model(path: Path, found: Launch, cpu_models: Sequence[str]) -> str:
    """Return the CPU model of a signature. Several share one: a named model comes first."""
    for name in (*cpu_models, *snp.cpu_models()):
        if snp.signature(name) == found.signature:
            return name
    raise ImageError(f"IGVM file {path}: no known CPU model has the signature {found.signature:#x}", code="image-igvm",
                     hint=f"known: {', '.join(snp.cpu_models())}")


def _read(path: Path, most: int = predict_firmware.MAX_BYTES + 1) -> bytes:
    try:
        return inputfile.read(path, most)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}") from None
