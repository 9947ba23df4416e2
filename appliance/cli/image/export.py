"""`appliance image export|kubevirt|sbom`: an image for clouds and clusters, and papers about it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from appliance.attestation import keyfile
from appliance.cli import numbers, passphrase
from appliance.errors import ImageError
from appliance.imaging import clouds, export
from appliance.imaging.igvm import rows
from appliance.imaging.igvm.rows import IgvmOptions
from appliance.imaging.papers import kubevirt, provenance, sbom
from appliance.imaging.papers.fleet import FleetOptions
from appliance.imaging.predict import idblock, predict, snp
from appliance.imaging.recipe import manifest
from appliance.policy.explaining.checking import load


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `export`, `kubevirt` and `sbom`."""
    summary = "write an image's disk in a cloud's format, or its launch as an IGVM file"
    disk = actions.add_parser("export", help=summary, description=summary)
    disk.add_argument("image", metavar="DIR", type=Path, help="the image's folder")
    form = disk.add_mutually_exclusive_group(required=True)
    form.add_argument("--cloud", choices=sorted(clouds.CLOUDS),
                      help="the form that this cloud takes; checks what it demands, and prints its own tool's commands")
    form.add_argument("--format", choices=export.FORMATS,
                      help="raw; qcow2: OpenStack, KubeVirt; vhd: Azure; tar: Google Cloud (disk.raw in .tar.gz)")
    form.add_argument("--igvm", metavar="FIRMWARE", type=Path,
                      help="no disk: an SEV-SNP launch of this firmware (OVMF.amdsev.fd) and the image's kernel, as an "
                      "IGVM file for QEMU 10.1 or newer")
    disk.add_argument("--vcpus", metavar="N", type=numbers.whole(1, 512), default=1,
                      help="--igvm: its virtual CPUs (default: %(default)s)")
    disk.add_argument("--cpu-model", metavar="NAME", default="EPYC-v4",
                      help=f"--igvm: their model (default: %(default)s; known: {', '.join(snp.cpu_models())})")
    disk.add_argument("--guest-policy", metavar="BITS", type=numbers.bits, default=idblock.STRICT_POLICY,
                      help="--igvm: its guest policy (default: 0x20000: no SMT, migration or debugging)")
    disk.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the file to make or to replace")
    disk.add_argument("--json", action="store_true", help="print the file and its size as JSON")
    summary = "render a policy as KubeVirt objects"
    cluster = actions.add_parser("kubevirt", help=summary, description=summary)
    cluster.add_argument("file", metavar="FILE", type=Path, help="the policy")
    cluster.add_argument("--container", metavar="NAME@sha256:DIGEST", required=True,
                         help="the container with /disk/disk.qcow2 and, for SEV-SNP, /boot/appliance.efi")
    cluster.add_argument("--platform", help="where the policy allows several")
    cluster.add_argument("--name", help="of the objects (default: the policy's)")
    cluster.add_argument("--cpus", metavar="N", type=numbers.CPUS, default=1,
                         help="virtual CPUs of each (default: %(default)s)")
    cluster.add_argument("--memory", metavar="MIB", type=numbers.MEBIBYTES,
                         help="memory of each (default: by the policy's memory budget, or 768)")
    cluster.add_argument("--models-claim", metavar="NAME", help="the volume claim with the models' disk")
    cluster.add_argument("--state-claim", metavar="NAME", help="the volume claim of the state disk")
    cluster.add_argument("--replicas", metavar="N", type=numbers.whole(1, (1 << 31) - 1), default=1,
                         help="machines (default: %(default)s)")
    cluster.add_argument("--guarded", action="store_true",
                         help="a NetworkPolicy (listeners in, brokers out), and of several machines one away at a time")
    cluster.add_argument("--max-replicas", metavar="N", type=numbers.whole(1, (1 << 31) - 1),
                         help="start up to so many by the length of their queues (HorizontalPodAutoscaler)")
    cluster.add_argument("--gateway", metavar="CLASS", help="a way in by this GatewayClass that leaves TLS whole")
    cluster.add_argument("--hostname", metavar="NAME", help="the host name of that way, as in clients' URLs")
    cluster.add_argument("-o", "--output", metavar="FILE", type=Path, help="where it goes (default: standard output)")
    cluster.add_argument("--json", action="store_true", help="print where it went as JSON (it is JSON in any case)")
    summary = "write an image's SBOM (CycloneDX 1.6) and provenance (SLSA v1) into its folder"
    papers = actions.add_parser("sbom", help=summary, description=summary)
    papers.add_argument("image", metavar="DIR", type=Path, help="the image's folder")
    papers.add_argument("--policy", metavar="FILE", type=Path, help="name the models of this policy as well")
    papers.add_argument("--builder", metavar="URI", default=provenance.DEFAULT_BUILDER,
                        help="the builder, who is the author of both papers (default: %(default)s)")
    papers.add_argument("--key", metavar="KEY.pem", type=Path,
                        help="sign the provenance with the builder's Ed25519 key, as a DSSE envelope")
    papers.add_argument("-o", "--output", metavar="FILE|DIR", type=Path,
                        help="write only the SBOM to this file (-: standard output), or all papers into this folder")
    papers.add_argument("--json", action="store_true", help="print the files and their sizes as JSON, in a list")


def tell(args: argparse.Namespace, size: int) -> None:
    """Print which file was made, and how large it is."""
    print(json.dumps({"file": str(args.output), "size": size}) if args.json else f"{args.output}: {size / 1e6:.1f} MB")


def _export(args: argparse.Namespace) -> int:
    if args.igvm is not None:
        tell(args, rows.export(args.image, IgvmOptions(args.igvm, args.vcpus, args.cpu_model, args.guest_policy),
                               args.output))
        return 0
    cloud = None if args.cloud is None else clouds.CLOUDS[args.cloud]
    if cloud is not None:
        clouds.check(cloud, args.image, manifest.read(args.image))
    with tqdm(unit="B", unit_scale=True, disable=None, leave=False) as bar:
        def progress(done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.refresh()

        size = export.export(args.image, args.format if cloud is None else cloud.format, args.output, progress)
    if cloud is None:
        tell(args, size)
    else:
        _tell_cloud(args, cloud, size)
    return 0


def _tell_cloud(args: argparse.Namespace, cloud: clouds.Cloud, size: int) -> None:
    """Print the file, what stops an image there, and the commands that come next."""
    commands = clouds.commands(cloud, args.output)
    if args.json:
        print(json.dumps({"file": str(args.output), "size": size, "cloud": cloud.name, "lacks": cloud.lacks or None,
                          "commands": commands}))
        return
    tell(args, size)
    if cloud.lacks:
        print(f"WARNING: it does not boot on {cloud.title} yet: {cloud.lacks}")
    print("\n".join(["next:", *(f"  {each}" for each in commands)]))


def _kubevirt(args: argparse.Namespace) -> int:
    text = kubevirt.render(load(args.file), kubevirt.Options(
        args.container, args.platform, args.name, args.cpus, args.memory, args.models_claim, args.state_claim,
        args.replicas, FleetOptions(args.guarded, args.max_replicas, args.gateway, args.hostname)))
    if args.output is None:
        sys.stdout.write(text.decode())
    else:
        keyfile.write_whole(args.output, text)
        if args.json:
            print(json.dumps({"file": str(args.output), "size": len(text)}))
    return 0


def _sbom(args: argparse.Namespace) -> int:
    document = manifest.read(args.image)
    files = predict.checked_files(args.image, document)
    loaded = load(args.policy) if args.policy else None
    made = sbom.make(document, loaded, args.builder)
    if args.output is not None and not args.output.is_dir():
        return _sbom_alone(args, made)
    folder = args.output or args.image
    key = None if args.key is None else keyfile.ed25519_private_key(args.key, passphrase.ask)
    statement = provenance.statement(
        document, {**files, sbom.NAME: provenance.digest(made)}, args.builder)
    (folder / provenance.ENVELOPE_NAME).unlink(missing_ok=True)
    written = {sbom.NAME: made, provenance.STATEMENT_NAME: statement}
    if key is not None:
        written[provenance.ENVELOPE_NAME] = provenance.envelope(statement, key)
    for name, data in written.items():
        keyfile.write_whole(folder / name, data)
    done = {str(folder / name): len(data) for name, data in written.items()}
    print(json.dumps([{"file": file, "size": size} for file, size in done.items()]) if args.json else
          "\n".join(f"{file}: {size} bytes" for file, size in done.items()))
    return 0


def _sbom_alone(args: argparse.Namespace, made: bytes) -> int:
    """Write the SBOM to a file of its own, or to standard output."""
    if args.key is not None:
        raise ImageError("--key signs the provenance, which is not written to a file", code="output-unused",
                         hint="name a folder that is there: -o DIR")
    if str(args.output) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
        return 0
    keyfile.write_whole(args.output, made)
    print(json.dumps([{"file": str(args.output), "size": len(made)}]) if args.json else
          f"{args.output}: {len(made)} bytes")
    return 0


ACTIONS = {"export": _export, "kubevirt": _kubevirt, "sbom": _sbom}
