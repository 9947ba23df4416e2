"""`appliance image reference`: one statement of an image for all shapes of machines."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.attestation import keyfile
from appliance.attestation.case.measurements import DerivedMeasurements
from appliance.cli import numbers, passphrase
from appliance.cli.image import predict
from appliance.imaging import reference
from appliance.imaging.predict import golden, snp


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the action."""
    summary = "state an image once: verifiers derive what hardware measures, for each shape of machine"
    make = actions.add_parser("reference", help=summary, description=summary)
    make.add_argument("image", metavar="DIR", type=Path, help="the image's folder; reference.json goes there")
    make.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with the builder's Ed25519 key (PKCS #8)")
    make.add_argument("--golden", metavar="FILE", type=Path, action="append", default=[],
                      help="PCR 0 and 7 of a machine, as `record` wrote them; may be repeated")
    make.add_argument("--firmware", metavar="FILE", type=Path, action="append", default=[],
                      help="SEV-SNP: a firmware, such as OVMF.amdsev.fd; may be repeated")
    make.add_argument("--max-vcpus", metavar="N", type=numbers.whole(1, 512), default=512,
                      help="SEV-SNP: the most virtual CPUs that a guest may have (default: 512)")
    make.add_argument("--cpu-model", metavar="NAME,NAME", type=predict.names, default=("EPYC-v4",),
                      help=f"SEV-SNP: CPU models (default: EPYC-v4; known: {', '.join(snp.cpu_models())})")
    make.add_argument("--tdx-firmware", metavar="FILE", type=Path, action="append", default=[],
                      help="TDX: a firmware, as OVMF.fd of trixie's ovmf; may be repeated")
    make.add_argument("--nitrotpm", action="store_true", help="also for a NitroTPM on EC2")
    predict.add_google(make)
    make.add_argument("--json", action="store_true", help="print the reference as JSON")


def _reference(args: argparse.Namespace) -> int:
    key = None if args.key is None else keyfile.ed25519_private_key(args.key, passphrase.ask)
    found = reference.make(reference.ReferenceOptions(
        args.image, tuple(args.firmware), args.cpu_model, args.max_vcpus, tuple(args.tdx_firmware),
        tuple(golden.load(path) for path in args.golden), key, predict.google(args), args.nitrotpm))
    print(found.to_json().decode() if args.json else "\n".join(_told(found, args.image, signed=key is not None)))
    return 0


def _told(found: DerivedMeasurements, folder: Path, *, signed: bool) -> list[str]:
    """Return the statement in words, and plainly what is not derived from it."""
    lines = [f"policy      {found.policy_sha384 or 'given at launch'}",
             f"root hash   {found.reference.root_hash}", f"sev-snp     {found.launches()}",
             *(f"            FIRMWARE ALONE: {each.launch_digest}  {each.vcpus} x {each.vmm}"
               for each in found.snp_rows()),
             *(f"tdx mrtd    {each.mrtd}" for each in found.reference.tdx)]
    if not found.reference.tdx:
        lines.append("tdx         not derived: no --tdx-firmware given")
    return [*lines, *predict.told_tpm(found),
            f"{folder / reference.OUTPUT}: {'signed' if signed else 'NOT SIGNED (--key)'}"]


ACTIONS = {"reference": _reference}
