"""A portable reference of an image, from the files of its folder: `reference.json`.

Unlike measurements it is of no shape of machine: a verifier derives the rows
(`attestation/measured/portable`). docs/formats/portable-reference.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from appliance.attestation.binding import Build, describe
from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import DerivedMeasurements
from appliance.attestation.measured import portable
from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.first import Golden
from appliance.attestation.measured.portable import PortableReference, SnpShapes
from appliance.attestation.measured.second import FIRMWARE, TdxRow
from appliance.errors import ImageError
from appliance.imaging.predict import gpt, predict, snp, tdx, tpm
from appliance.imaging.recipe import manifest

OUTPUT = "reference.json"


@dataclass(frozen=True)
class ReferenceOptions:
    """Which image, and on which machines it may run. `cloud` gives a cloud's own rows, from the
    events of the boot; of these only what covers the firmware goes in."""

    folder: Path
    firmware: tuple[Path, ...] = ()
    cpu_models: tuple[str, ...] = ("EPYC-v4",)
    max_vcpus: int = MAX_VCPUS
    tdx_firmware: tuple[Path, ...] = ()
    golden: tuple[Golden, ...] = ()
    key: Ed25519PrivateKey | None = field(default=None, repr=False)
    cloud: predict.CloudRows | None = field(default=None, repr=False)
    nitro: bool = False


def make(options: ReferenceOptions) -> DerivedMeasurements:
    """Write the reference, signed if there is a key, into the image's folder; returns what it
    gives. Raises ImageError if a file differs from the manifest, or says nothing of an image."""
    document, files, uki = predict.opened(options.folder)
    log = predict.boot(options.folder, uki)
    td_rows, launch_rows = ((), ()) if options.cloud is None else options.cloud(log)
    endorsed = {each.mrtd for each in td_rows}  # no second row, which would be of no security version
    try:
        found = DerivedMeasurements.of(PortableReference(
            format=portable.FORMAT, image=files, policy_sha384=predict.entry(document, "policy", "sha384"),
            build=Build.model_validate({
                name: predict.entry(document, "build", name) for name in ("version", "code_sha384", "kernels_sha384")}),
            boot=tpm.contents(uki, gpt.event(options.folder / "disk.raw")), sev_snp=_shapes(options),
            tdx=tuple(dict.fromkeys((*(each for each in _firmware(options.tdx_firmware) if each.mrtd not in endorsed),
                                     *map(_firmware_alone, td_rows)))),
            firmware_rows=launch_rows, golden=predict.in_order(options.golden), nitro=options.nitro))
    except ValidationError as error:
        raise ImageError(f"{manifest.NAME}: {describe(error)}") from None
    measurements.parse(found.to_json())  # checked as a reader checks it
    predict.write(options.folder / OUTPUT, found.to_json(), options.key)
    return found


def _shapes(options: ReferenceOptions) -> SnpShapes | None:
    if not options.firmware:
        return None
    for model in options.cpu_models:
        snp.signature(model)
    return SnpShapes(
        firmware=tuple(snp.described(predict.read_firmware(path)[0]) for path in options.firmware),
        cpu_models=options.cpu_models, max_vcpus=options.max_vcpus, guest_features=f"{predict.GUEST_FEATURES:#x}")


def _firmware(paths: tuple[Path, ...]) -> Iterator[TdxRow]:
    for path in paths:
        firmware, digest = predict.read_firmware(path)
        for order in tdx.ORDERS:
            yield TdxRow(source="predicted", covers=FIRMWARE, svn=None, firmware_sha256=digest, firmware_sha384=None,
                         page_order=order, ram_gib=None, early_accept=None, mrtd=tdx.mrtd(firmware, order).hex(),
                         rtmr=(None, None, None, None), unverified=tdx.UNVERIFIED)


def _firmware_alone(row: TdxRow) -> TdxRow:
    """Return a row without the registers that an image gives."""
    return row.model_copy(update={"covers": FIRMWARE, "rtmr": (row.rtmr[0], None, None, None)})
