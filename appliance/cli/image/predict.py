"""`appliance image predict|record`: what hardware will measure of an image, and what no file tells.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from appliance.attestation import keyfile
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.google import endorsement
from appliance.cli import numbers, passphrase, verifying
from appliance.errors import ImageError
from appliance.imaging.google import machine
from appliance.imaging.google.machine import GoogleMachines
from appliance.imaging.igvm import rows as igvm
from appliance.imaging.predict import clouds, idblock, predict
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.predict import snp as predict_snp
from appliance.imaging.qemu import run
from appliance.imaging.qemu.machine import FIRMWARE


def names(text: str) -> tuple[str, ...]:
    """Return names from the command line, each once."""
    return tuple(dict.fromkeys(text.split(",")))


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `predict` and `record`."""
    summary = "compute from an image's files what hardware will measure"
    make = actions.add_parser("predict", help=summary, description=summary)
    make.add_argument("image", metavar="DIR", type=Path, help="the image's folder; measurements.json goes there")
    make.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with the builder's Ed25519 key (PKCS #8)")
    make.add_argument("--golden", metavar="FILE", type=Path, action="append", default=[],
                      help="PCR 0 and 7 of a machine, as `record` wrote them; may be repeated")
    make.add_argument("--firmware", metavar="FILE", type=Path, help="SEV-SNP: the firmware, such as OVMF.amdsev.fd")
    make.add_argument("--vcpus", metavar="N,N", type=numbers.listed(1, 512, "1,2,4"),
                      default=(1, 2, 4), help="SEV-SNP: numbers of virtual CPUs (default: 1,2,4)")
    make.add_argument("--cpu-model", metavar="NAME,NAME", type=names, default=("EPYC-v4",),
                      help=f"SEV-SNP: CPU models (default: EPYC-v4; known: {', '.join(predict_snp.cpu_models())})")
    make.add_argument("--igvm", metavar="FILE", type=Path, action="append", default=[],
                      help="SEV-SNP: a launch that `export --igvm` wrote with that firmware; may be repeated")
    make.add_argument("--id-key", metavar="KEY.pem", type=Path, help="SEV-SNP: make ID blocks with this P-384 key")
    make.add_argument("--author-key", metavar="KEY.pem", type=Path, help="SEV-SNP: vouch for the ID key with this one")
    make.add_argument("--guest-policy", metavar="BITS", type=numbers.bits, default=idblock.STRICT_POLICY,
                      help="SEV-SNP: guest policy in ID blocks (default: 0x20000: no SMT, migration or debugging)")
    make.add_argument("--tdx-firmware", metavar="FILE", type=Path, help="TDX: firmware, as OVMF.fd of trixie's ovmf")
    make.add_argument("--nitrotpm", action="store_true", help="also the registers of a NitroTPM on EC2, in a file of "
                      "version 2")
    make.add_argument("--vmm", choices=("qemu", *clouds.LAYOUTS), default="qemu",
                      help="SEV-SNP: who lays out the launch; a cloud's digest covers the firmware alone "
                      "(default: qemu)")
    add_google(make)
    make.add_argument("--json", action="store_true", help="print the measurements as JSON")
    summary = "keep PCR 0 and 7 of a machine that you trust, as golden values"
    keep = actions.add_parser("record", help=summary, description=summary)
    keep.add_argument("image", metavar="DIR", type=Path, nargs="?",
                      help="start this image under QEMU with a software TPM, and read what that holds")
    keep.add_argument("--memory", metavar="MIB", type=numbers.MEBIBYTES, default=768,
                      help="of that machine (default: 768)")
    keep.add_argument("--cpus", metavar="N", type=numbers.CPUS, default=1,
                      help="of that machine (default: 1)")
    keep.add_argument("--from", dest="source", metavar="FILE", type=Path,
                      help="instead: TPM evidence of a machine, or its event log")
    keep.add_argument("--firmware", metavar="FILE", type=Path, default=FIRMWARE[0],
                      help=f"the firmware that the machine runs (default: {FIRMWARE[0]})")
    keep.add_argument("--machine", metavar="NAME", required=True, help="a name for this shape of machine")
    keep.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="where the values go")
    keep.add_argument("--json", action="store_true", help="print the values as JSON")


def add_google(parser: argparse.ArgumentParser) -> None:
    """Declare how Google's machines are predicted."""
    google = parser.add_argument_group("Google's machines")
    google.add_argument("--gce-endorsement", metavar="FILE", type=Path,
                        help=f"Google's endorsement of the firmware; {endorsement.ROOT_FILE} is looked for beside it")
    google.add_argument("--gce-firmware", metavar="FILE", type=Path, help="that firmware; for RTMR 0")
    google.add_argument("--gce-log", metavar="FILE", type=Path, help="the CCEL of a machine; for RTMR 0")
    google.add_argument("--gce-ram", metavar="GIB,GIB", type=numbers.listed(4, 1 << 16, "16,32"), default=(),
                        help="the machines' memory, such as 16,32; for RTMR 0 (default: none)")
    google.add_argument("--at", metavar="TIME", type=verifying.time,
                        help="judge the endorsement's certificates by this time (default: now)")
    google.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="for tests only: believe another root above endorsements")


def _predict(args: argparse.Namespace) -> int:
    if args.firmware is None and (args.id_key or args.author_key):
        raise ImageError("an ID block is of a SEV-SNP launch", hint="name the firmware: --firmware OVMF.amdsev.fd")
    if args.firmware is None and args.igvm:
        raise ImageError("--igvm: a row covers the image only with a firmware that you name", code="image-igvm",
                         hint="name that of the export: --firmware OVMF.amdsev.fd")
    if args.vmm != "qemu" and (args.firmware is None or args.id_key or args.author_key):
        raise ImageError(f"--vmm {args.vmm}: needs the cloud's firmware, and such a launch has no ID block",
                         hint="name the firmware that the cloud publishes: --firmware FILE")
    snp = None if args.firmware is None else predict.Snp(
        args.firmware, tuple(args.vcpus), args.cpu_model, _p384(args.id_key), _p384(args.author_key), args.guest_policy,
        None if args.vmm == "qemu" else args.vmm)
    key = None if args.key is None else keyfile.ed25519_private_key(args.key, passphrase.ask)
    found = predict.predict(predict.Options(
        args.image, snp, args.tdx_firmware, tuple(predict_golden.load(path) for path in args.golden), key,
        google(args), args.nitrotpm,
        partial(igvm.predictions, args.igvm, args.firmware, args.cpu_model) if args.igvm else None))
    print(found.to_json().decode() if args.json else "\n".join(_told(found, args.image, signed=key is not None)))
    return 0


def google(args: argparse.Namespace) -> predict.CloudRows | None:
    """Return what makes rows of Google's machines."""
    if args.gce_endorsement is None:
        if args.gce_firmware or args.gce_log or args.gce_ram:
            raise ImageError("Google's machines are predicted by its endorsement of their firmware",
                             hint="fetch it: appliance collateral fetch EVIDENCE -o DIR --gce")
        return None
    root = verifying.roots(args.unsafe_root).others.get("gce", endorsement.ROOT)
    return partial(machine.rows, GoogleMachines(
        args.gce_endorsement, args.at or datetime.now(UTC), args.gce_firmware, args.gce_log, tuple(args.gce_ram), root))


def _record(args: argparse.Namespace) -> int:
    if (args.source is None) == (args.image is None):
        raise ImageError("golden values come from an image that is started, or from --from FILE: name one of them")
    if args.source is not None:
        golden = predict_golden.record(args.machine, args.firmware, args.source)
    else:
        shape = run.Options(args.image, memory=args.memory, cpus=args.cpus, confidential="none")
        golden = predict_golden.started(args.machine, shape)
    keyfile.write_whole(args.output, document := predict_golden.to_json(golden))
    print(document.decode() if args.json else
          "\n".join(f"PCR {number}  {value}" for number, value in sorted(golden.pcrs.items())))
    return 0


def _told(found: Measurements, folder: Path, *, signed: bool) -> list[str]:
    """Print the predictions, and plainly what was not predicted."""
    lines = [f"policy      {found.policy_sha384 or 'given at launch'}"]
    lines += [f"sev-snp     {each.launch_digest}  {each.vcpus} x {each.cpu_model or each.vmm}"
              f"{', ID block' if each.id_block else ''}{'' if each.image else ', FIRMWARE ALONE'}"
              for each in found.snp_rows()] or ["sev-snp     not predicted: no --firmware given"]
    lines += [f"firmware    SHA-256 {digest}" for digest in dict.fromkeys(
        each.firmware_sha256 for each in found.snp_rows() if each.firmware_sha256)]
    lines += [f"tdx mrtd    {each.mrtd}  page order: {each.page_order or 'not computed'}" for each in found.tdx] or [
        "tdx         not predicted: no --tdx-firmware given"]
    lines += [f"            not verified: {note}" for note in (found.tdx[0].unverified if found.tdx else ())]
    lines += told_tpm(found)
    nitro = found.nitro_prediction()
    lines += [] if nitro is None else [f"nitro pcr {number:2d}  {value.hex()}" for number, values in sorted(
        nitro.accepted().items()) for value in values]
    return [*lines, f"{folder / predict.OUTPUT}: {'signed' if signed else 'NOT SIGNED (--key)'}"]


def told_tpm(found: Measurements) -> list[str]:
    """Return the registers of a TPM, a line each."""
    if found.tpm is None:
        return []
    lines = [f"tpm pcr {int(name):2d}  {value}" for name, values in sorted(
        found.tpm.pcrs.items(), key=lambda item: int(item[0])) for value in values]
    return lines + ([f"tpm golden  PCR 0 and 7 of {shape.machine}" for shape in found.tpm.golden] or [
        "tpm golden  none: every TPM quote will be refused (appliance image record, --golden)"])


def _p384(path: Path | None) -> ec.EllipticCurvePrivateKey | None:
    if path is None:
        return None
    key = keyfile.private_key(path, passphrase.ask)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ImageError(f"{path}: an ID block is signed with a P-384 key",
                         hint="openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out id.pem")
    return key


ACTIONS = {"predict": _predict, "record": _record}
