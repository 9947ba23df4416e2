"""`appliance image`: build a measured image, predict its measurements, boot it under QEMU, resolve
its lock files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from appliance.cli import numbers
from appliance.cli.image import export, igvm, reference, release, successor
from appliance.cli.image import predict as image_predict
from appliance.cli.progress import Progress
from appliance.codec.printable import quantity
from appliance.imaging import build, clouds
from appliance.imaging import export as formats
from appliance.imaging.packages import locking
from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.papers import container
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu import softtpm
from appliance.imaging.qemu.machine import Reach
from appliance.imaging.recipe import recipe
from appliance.imaging.recipe.stages import Steps
from appliance.kernels.runtime import targets
from appliance.policy.explaining.checking import load

BUILD = """Build a disk image that is measured as it starts: Linux, the appliance, its compiled kernels and the policy.

Needed for a TEE, and for every other machine whose evidence clients shall check; `appliance serve` here needs none. It
takes pinned Debian packages and wheels, from mirrors or the cache, and no privilege.
Then: `appliance image predict` for what clients compare evidence with, `appliance image boot` to try it."""


def _mirror(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not name or not address:
        raise argparse.ArgumentTypeError("expected NAME=URL, such as debian=https://HOST/debian")
    return name, address


def _reach(text: str) -> Reach:
    return Reach(*numbers.address(1, "127.0.0.1:8443")(text))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("build", help="build an image with a policy baked in", description=BUILD,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    make.add_argument("file", metavar="FILE", type=Path, nargs="?", help="the policy; without: it is given at launch")
    make.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="folder for the image")
    known = [target.name for target in targets.known("x86_64")]
    make.add_argument("--target", metavar="NAME", choices=[*known, "all"], action="append", default=[],
                      help=f"kernels for this CPU target only: {', '.join(known)}, or all; may be repeated (default: "
                      "the best of this CPU, and avx2, which emulated machines run)")
    make.add_argument("--format", metavar="FORMAT", choices=formats.FORMATS, action="append", default=[],
                      help="write the disk in a cloud's format too: qcow2 (disk.qcow2), vhd (disk.vhd), tar "
                      "(disk.tar.gz), as `export` does; may be repeated; raw (disk.raw) is always written")
    make.add_argument("--cloud", metavar="NAME", choices=sorted(clouds.CLOUDS), action="append", default=[],
                      help=f"put the drivers of a cloud's machines into the initrd: {', '.join(clouds.CLOUDS)}; may be "
                      "repeated (then: appliance image export --cloud NAME)")
    make.add_argument("--here", action="store_true", help="start it once under QEMU, keep PCR 0 and 7 of that machine "
                      "as golden values, and predict the other measurements (see `record` and `predict`)")
    make.add_argument("--json", action="store_true", help="print the manifest as JSON")
    image_predict.add_arguments(actions)
    reference.add_arguments(actions)
    export.add_arguments(actions)
    igvm.add_arguments(actions)
    release.add_arguments(actions)
    successor.add_arguments(actions)
    summary = "run an image under QEMU"
    _add_boot(actions.add_parser("boot", help=summary, description=summary))
    summary = "make a software TPM, and the authority that certifies it, for `boot --tpm-state`"
    tpm = actions.add_parser("tpm", help=summary, description=summary)
    tpm.add_argument("folder", metavar="DIR", type=Path, help="the folder for both; files that exist stay")
    tpm.add_argument("--json", action="store_true", help="print the folder of the authority's certificates as JSON")
    summary = "resolve packages and wheels again and write the lock files"
    lock = actions.add_parser("lock", help=summary, description=summary)
    lock.add_argument("--requirements", metavar="FILE", type=Path,
                      default=recipe.FOLDER.parent / "requirements-image.lock",
                      help="the hash-locked Python packages (default: requirements-image.lock of the checkout)")
    lock.add_argument("--json", action="store_true", help="print what was locked as JSON")
    summary = "write the root file system as a container's archive"
    pack = actions.add_parser("container", help=summary, description=summary,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    pack.add_argument("image", metavar="DIR", type=Path, help="the image's folder")
    pack.add_argument("-o", "--output", metavar="TAR", type=Path, required=True, help="the archive")
    pack.add_argument("--json", action="store_true", help="print the file and its size as JSON")
    pack.epilog = f"docker import --change 'ENTRYPOINT {json.dumps(container.COMMAND)}' TAR NAME"
    for action in (make, lock, pack):
        action.add_argument("--recipe", metavar="DIR", type=Path, default=recipe.FOLDER,
                            help="the recipe's folder (default: image/ of the checkout)")
        action.add_argument("--mirror", metavar="NAME=URL", type=_mirror, action="append", default=[],
                            help="a Debian archive's address (default: as apt is configured here)")
        action.add_argument("--cache", metavar="DIR", type=Path, help="where downloads are kept, by their SHA-256 "
                            "(default: ~/.cache/appliance)")


def _add_boot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="DIR", type=Path, help="the image's folder")
    parser.add_argument("--models", metavar="DIR|DISK", type=Path, help="model files, or a disk that holds them")
    parser.add_argument("--add", metavar="FILE", type=Path, action="append", default=[],
                        help="a further file for the models' disk, such as a tenant list; may be repeated")
    parser.add_argument("--state", metavar="DISK", type=Path, help="a disk that the guest may write to")
    parser.add_argument("--policy", metavar="FILE", type=Path, help="the policy, for an image without one")
    parser.add_argument("--collateral", metavar="DISK", type=Path,
                        help="an archive of a vendor's documents, which the guest passes on with its evidence")
    parser.add_argument("--audit-log", metavar="FILE", type=Path,
                        help="write the guest's audit log here (default: on the console)")
    parser.add_argument("--firmware", metavar="FILE", type=Path,
                        help="the machine's firmware (default: of Debian's ovmf packages)")
    parser.add_argument("--memory", metavar="MIB", type=numbers.MEBIBYTES, default=768,
                        help="the machine's memory (default: %(default)s)")
    parser.add_argument("--cpus", metavar="N", type=numbers.CPUS, default=1,
                        help="its virtual CPUs (default: %(default)s)")
    parser.add_argument("--port", metavar="PORT", type=numbers.whole(1, 65535), default=8080,
                        help="this machine's loopback port that leads to the guest's service (default: 8080)")
    parser.add_argument("--broker", metavar="HOST:PORT", type=_reach,
                        help=f"let the guest connect only to this address, which it finds at {Reach.ADDRESS}:PORT")
    parser.add_argument("--vsock", metavar="CID", type=numbers.whole(3, (1 << 32) - 2),
                        help="give it a vsock device with this number (3 or more), "
                        "for vsock listeners; needs the kernel's vhost_vsock")
    parser.add_argument("--tpm", action="store_true", help="give it a software TPM")
    parser.add_argument("--tpm-state", metavar="DIR", type=Path, help="keep the TPM's state and authority here")
    parser.add_argument("--accelerator", choices=("auto", "kvm", "tcg"), default="auto",
                        help="auto tries KVM for some seconds, then emulates (default: auto)")
    parser.add_argument("--confidential", choices=("auto", "snp", "tdx", "none"), default="auto",
                        help="auto: SEV-SNP or TDX where the host has it (default: auto)")
    parser.add_argument("--direct", action="store_true", help="without firmware: QEMU loads kernel and initrd")
    parser.add_argument("--seconds", metavar="N", type=numbers.SECONDS,
                        help="switch it off after so long (default: when its service ends)")
    parser.add_argument("--qemu", metavar="WORD", action="append", default=[],
                        help="a further argument of QEMU; may be repeated")
    parser.add_argument("--json", action="store_true",
                        help="print how it ended as JSON, and the guest's console on standard error")
    parser.epilog = "exit codes: 0 the service ended well, 1 it did not, 2 the machine cannot be started"


def run(args: argparse.Namespace) -> int:
    """Do one action; 0, or an error that names step, file or package."""
    own = {"build": _build, "boot": _boot, "tpm": _tpm, "lock": _lock, "container": _container}
    return {**own, **image_predict.ACTIONS, **reference.ACTIONS, **export.ACTIONS, **igvm.ACTIONS, **release.ACTIONS,
            **successor.ACTIONS}[args.action](args)


def _build(args: argparse.Namespace) -> int:
    options = build.Options(
        recipe=recipe.load(args.recipe), output=args.output, policy=load(args.file) if args.file else None,
        mirrors=dict(args.mirror), cache=args.cache, targets=kernel_targets(args.target),
        exports=tuple(kind for kind in dict.fromkeys(args.format) if kind != "raw"),
        clouds=tuple(sorted(set(args.cloud))))
    with Progress(quiet=args.json) as progress:
        document = build.build(options, Steps(progress, progress.ended))
        if args.here:
            progress.begin("measurements: the image starts once under QEMU, for minutes where there is no KVM")
            golden = predict_golden.started("here", boot.Options(args.output, confidential="none"))
            predict.predict(predict.Options(args.output, golden=(golden,)))
    print(json.dumps(document) if args.json else f"{args.output}: root hash {document['verity']['root_hash']}")
    return 0


def kernel_targets(named: list[str]) -> tuple[str, ...]:
    """Return the targets of an image's kernels; none is all. The default is this CPU's, and that of
    emulated machines, which have no more than AVX2."""
    if "all" in named:
        return ()
    known = [target.name for target in targets.known("x86_64")]
    return tuple(named) or tuple(name for name in known if name in (targets.detect().name, "avx2"))


def _boot(args: argparse.Namespace) -> int:
    options = boot.Options(
        image=args.image, models=args.models, add=tuple(args.add), state=args.state,
        policy=load(args.policy) if args.policy else None, collateral=args.collateral, audit=args.audit_log,
        firmware=args.firmware, memory=args.memory, cpus=args.cpus, port=args.port, broker=args.broker,
        vsock=args.vsock, accelerator=args.accelerator, direct=args.direct, tpm=args.tpm, tpm_state=args.tpm_state,
        confidential=args.confidential, extra=tuple(args.qemu))

    stream = sys.stderr if args.json else sys.stdout
    address = boot.address(options)

    def console(line: bytes) -> None:
        stream.write(line.decode(errors="replace").replace("\r\n", "\n"))
        stream.flush()
        if b"ready on " in line:
            print(_way_in(args, address), file=sys.stderr, flush=True)

    code = boot.boot(options, console=console, seconds=args.seconds)
    if args.json:
        print(json.dumps({"image": str(args.image), "address": address, "exit_code": code, "ended_well": code == 0},
                         indent=2))
    elif code != 0:
        print(f"{args.image}: the guest is off, and its service did not end well: the console says at which step",
              file=sys.stderr)
    return code


def _tpm(args: argparse.Namespace) -> int:
    softtpm.make(args.folder)
    authority = args.folder / softtpm.AUTHORITY
    print(json.dumps({"ek_roots": str(authority)}) if args.json else f"{authority}: the TPM's maker, for ek_roots")
    return 0


def _way_in(args: argparse.Namespace, address: str | None) -> str:
    """Say how a guest that is ready is reached from this machine."""
    if address is None:
        return "from this machine nothing leads there: the policy has no listener for TCP"
    policy = args.policy or "POLICY"
    measurements = "" if address.startswith("http:") else f" --measurements {args.image}/measurements.json"
    return f"from this machine: {address}; next: appliance verify {address} --policy {policy}{measurements}"


def _lock(args: argparse.Namespace) -> int:
    downloads = Downloads((args.cache or default_folder()) / "downloads")
    done = locking.lock(recipe.load(args.recipe), args.requirements, downloads, dict(args.mirror),
                        lambda what: tqdm.write(f"  {what}", file=sys.stderr))
    print(json.dumps({"packages": done.packages, "wheels": done.wheels}) if args.json
          else f"locked {quantity(done.packages, 'package')} and {quantity(done.wheels, 'wheel')}")
    return 0


def _container(args: argparse.Namespace) -> int:
    container.export(args.image, args.output, recipe.load(args.recipe),
                     Downloads((args.cache or default_folder()) / "downloads"), dict(args.mirror))
    export.tell(args, args.output.stat().st_size)
    return 0
