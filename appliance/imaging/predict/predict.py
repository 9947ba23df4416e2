"""The values that hardware will measure when it starts an image, from the files of its folder
alone: `measurements.json`.

    files     the manifest, and that each file has the digest that it says
    image     the unified kernel image consists of the parts beside it; the command line names the root hash
    tpm       PCRs by event, for a boot from disk.raw
    sev-snp   launch digests, for `-kernel appliance.efi` with kernel-hashes=on
    tdx       MRTD and RTMRs, for a boot from disk.raw
    golden    PCR 0 and 7, recorded on machines

docs/concepts/measurements.md says what each of them covers; the format is
docs/formats/measurements.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from appliance.attestation import keyfile
from appliance.attestation.binding import Build, describe
from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.measured import events, second
from appliance.attestation.measured.events import BootEvent
from appliance.attestation.measured.first import Golden, SnpPrediction, TdxPrediction, TpmPrediction
from appliance.attestation.measured.nitro import NitroPrediction
from appliance.attestation.measured.second import FIRMWARE, SnpRow, TdxRow
from appliance.errors import ImageError
from appliance.imaging.predict import clouds, gpt, idblock
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import snp as predict_snp
from appliance.imaging.predict import tdx as predict_tdx
from appliance.imaging.predict import tpm as predict_tpm
from appliance.imaging.predict import uki as predict_uki
from appliance.imaging.predict.uki import Uki
from appliance.imaging.recipe import manifest
from appliance.policy import inputfile

OUTPUT, SIGNATURE = "measurements.json", "measurements.json.sig"
GUEST_FEATURES = 1  # SEV_FEATURES: SNP active, nothing else
CloudRows = Callable[[Sequence[BootEvent]], tuple[tuple[TdxRow, ...], tuple[SnpRow, ...]]]
LaunchRows = Callable[[bytes], tuple[SnpPrediction, ...]]
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Snp:
    """A SEV-SNP launch: firmware, shapes of guest, and the keys of an ID block if one is wanted."""

    firmware: Path
    vcpus: tuple[int, ...] = (1, 2, 4)
    cpu_models: tuple[str, ...] = ("EPYC-v4",)
    id_key: ec.EllipticCurvePrivateKey | None = None
    author_key: ec.EllipticCurvePrivateKey | None = None
    guest_policy: int = idblock.STRICT_POLICY
    vmm: clouds.Vmm | None = None  # a cloud's layout, which covers the firmware alone; None: QEMU's


@dataclass(frozen=True)
class Options:
    """Which image, and for which machines. Without firmware nothing is predicted for SEV-SNP and
    TDX. `cloud` gives a cloud's own rows, from the events of the boot. `launches` gives those of
    files that lay out a launch of this kernel."""

    folder: Path
    snp: Snp | None = None
    tdx_firmware: Path | None = None
    golden: tuple[Golden, ...] = ()
    key: Ed25519PrivateKey | None = field(default=None, repr=False)
    cloud: CloudRows | None = field(default=None, repr=False)
    nitro: bool = False
    launches: LaunchRows | None = field(default=None, repr=False)


def predict(options: Options) -> Measurements:
    """Compute the measurements and write them, signed if there is a key, into the image's folder.

    Raises ImageError if a file differs from the manifest, or cannot be predicted.
    """
    document, files, uki = opened(options.folder)
    log = boot(options.folder, uki)
    td_rows, launch_rows = ((), ()) if options.cloud is None else options.cloud(log)
    endorsed = {each.launch_digest for each in launch_rows} | {each.mrtd for each in td_rows}  # no second row
    launches, tds = _sev_snp(options.snp, uki.pe.data), _tdx(options.tdx_firmware, log)
    launches += () if options.launches is None else options.launches(uki.pe.data)
    found = _assembled(document, files,
                       sev_snp=(*(each for each in launches if each.launch_digest not in endorsed), *launch_rows),
                       tdx=(*(each for each in tds if each.mrtd not in endorsed), *td_rows),
                       tpm=events.pcrs(log).model_copy(update={"golden": in_order(options.golden)}),
                       nitro=events.nitro(log) if options.nitro else None)
    write(options.folder / OUTPUT, found.to_json(), options.key)
    return found


def opened(folder: Path) -> tuple[Mapping[str, Any], dict[str, str], Uki]:
    """Return the manifest, each file's SHA-256 and the unified image of a folder in which all files
    are the manifest's. Raises ImageError."""
    document = manifest.read(folder)
    files = checked_files(folder, document)
    uki = predict_uki.parse((folder / "appliance.efi").read_bytes())
    _consistent(folder, document, uki)
    return document, files, uki


def boot(folder: Path, uki: Uki | None = None) -> list[BootEvent]:
    """Return the events of a boot from the image's disk."""
    uki = uki or predict_uki.parse((folder / "appliance.efi").read_bytes())
    return predict_tpm.boot_events(uki, gpt.event(folder / "disk.raw"))


def write(path: Path, data: bytes, key: Ed25519PrivateKey | None) -> None:
    """Write measurements and, beside them, their signature; without a key an older signature goes.
    """
    signature, beside = None if key is None else measurements.sign(data, key), path.with_name(f"{path.name}.sig")
    beside.unlink(missing_ok=True)
    keyfile.write_whole(path, data)
    if signature is not None:
        keyfile.write_whole(beside, signature)


def entry(document: Mapping[str, Any], *path: str) -> Any:
    """Return a value of the manifest by its keys. Raises ImageError, naming what is absent."""
    value: Any = document
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ImageError(f"{manifest.NAME}: {'.'.join(path)} is absent", hint="build the image again")
        value = value[key]
    return value


def checked_files(folder: Path, document: Mapping[str, Any], names: Sequence[str] = manifest.FILES) -> dict[str, str]:
    """Hash files of the image: name → SHA-256. Raises ImageError, which names a file that differs.
    """
    found = {}
    for name in names:
        wanted = entry(document, "files", name, "sha256")
        try:
            with (folder / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ImageError(f"{folder / name}: {error.strerror}") from None
        if found[name] != wanted:
            raise ImageError(f"{folder / name}: SHA-256 {found[name]}, the manifest says {wanted}",
                             code="image-file", hint="the file was changed since the build: build again")
    return found


def _consistent(folder: Path, document: Mapping[str, Any], uki: Uki) -> None:
    """The unified image is made of the parts that lie beside it, and its command line fixes the
    root."""
    for name, section in (("vmlinuz", ".linux"), ("initrd.cpio", ".initrd"), ("cmdline", ".cmdline"),
                          ("gate.bin", predict_uki.GATE)):
        if (folder / name).read_bytes() != uki.section(section):
            raise ImageError(f"{folder}: {name} is not the section {section} of appliance.efi", code="image-file")
    root_hash = entry(document, "verity", "root_hash")
    if not isinstance(root_hash, str) or _DIGEST.fullmatch(root_hash) is None:
        raise ImageError(f"{manifest.NAME}: verity.root_hash is no SHA-256")
    words = uki.section(".cmdline").decode("ascii").split(" ")
    if words.count(f"roothash={root_hash}") != 1 or sum(word.startswith("roothash=") for word in words) != 1:
        raise ImageError("appliance.efi: its command line does not name the root hash of the manifest, once",
                         code="image-file")


def _sev_snp(snp: Snp | None, kernel: bytes) -> tuple[SnpPrediction | SnpRow, ...]:
    if snp is None:
        return ()
    firmware, digest = read_firmware(snp.firmware)
    if snp.vmm is not None:
        return tuple(
            SnpRow(source="ec2" if snp.vmm == "ec2" else "predicted", covers=FIRMWARE, svn=None,
                   firmware_sha256=digest, firmware_sha384=None, vmm=snp.vmm, vcpus=vcpus, cpu_model=None,
                   guest_features=f"{GUEST_FEATURES:#x}", launch_digest=value.hex(), id_block=None)
            for vcpus, value in clouds.launch_digests(firmware, snp.vmm, snp.vcpus, GUEST_FEATURES).items())
    found = predict_snp.launch_digests(firmware, kernel, vcpus=snp.vcpus, cpu_models=snp.cpu_models,
                                       guest_features=GUEST_FEATURES)
    return tuple(
        SnpPrediction(vmm="qemu", vcpus=vcpus, cpu_model=model, guest_features=f"{GUEST_FEATURES:#x}",
               firmware_sha256=digest, launch_digest=value.hex(),
               id_block=None if snp.id_key is None else idblock.make(
                   value, snp.id_key, snp.author_key, guest_policy=snp.guest_policy))
        for (vcpus, model), value in found.items())


def _tdx(path: Path | None, log: list[BootEvent]) -> tuple[TdxPrediction, ...]:
    if path is None:
        return ()
    firmware, digest = read_firmware(path)
    none, first, second, third = events.rtmrs(log)
    return tuple(
        TdxPrediction(firmware_sha256=digest, page_order=order, mrtd=predict_tdx.mrtd(firmware, order).hex(),
            rtmr=(none, first.hex(), second.hex(), third.hex()), unverified=predict_tdx.UNVERIFIED)
        for order in predict_tdx.ORDERS)


def read_firmware(path: Path) -> tuple[predict_firmware.Firmware, str]:
    """Return a firmware file and its SHA-256. Raises ImageError."""
    try:
        data = inputfile.read(path, predict_firmware.MAX_BYTES + 1)
    except OSError as error:
        raise ImageError(f"firmware {path}: {error.strerror}") from None
    return predict_firmware.parse(data, f"firmware {path}"), hashlib.sha256(data).hexdigest()


def in_order(golden: tuple[Golden, ...]) -> tuple[Golden, ...]:
    """Return golden values by name of machine. Raises ImageError for a name that stands twice."""
    names = [shape.machine for shape in golden]
    for name in names:
        if names.count(name) > 1:
            raise ImageError(f"golden values: machine {name!r} stands twice")
    return tuple(sorted(golden, key=lambda shape: shape.machine))


def _assembled(document: Mapping[str, Any], files: dict[str, str], *, sev_snp: tuple[SnpPrediction | SnpRow, ...],
               tdx: tuple[TdxPrediction | TdxRow, ...], tpm: TpmPrediction,
               nitro: NitroPrediction | None = None) -> Measurements:
    """Return the whole, checked as a reader checks it: of version 2 if a row or the registers of a
    NitroTPM need it."""
    build = {name: entry(document, "build", name) for name in ("version", "code_sha384", "kernels_sha384")}
    try:
        common = {"build": Build.model_validate(build), "image": files,
                  "policy_sha384": entry(document, "policy", "sha384"), "tpm": tpm}
        if nitro is not None or any(isinstance(each, SnpRow | TdxRow) for each in (*sev_snp, *tdx)):
            found: Measurements = measurements.SourcedMeasurements(
                format=measurements.SECOND, **common, nitro=nitro,
                sev_snp=tuple(second.snp_row(each) if isinstance(each, SnpPrediction) else each for each in sev_snp),
                tdx=tuple(second.tdx_row(each) if isinstance(each, TdxPrediction) else each for each in tdx))
        else:
            found = Measurements(format=measurements.FORMAT, sev_snp=sev_snp, tdx=tdx, **common)
    except ValidationError as error:
        raise ImageError(f"{manifest.NAME}: {describe(error)}") from None
    return measurements.parse(found.to_json())
