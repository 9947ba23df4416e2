"""`appliance model tpm-seal`: give a sealed model's key to this machine's TPM, for one boot that it
measures."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from appliance.attestation.tpm.chip.client import DEVICE
from appliance.cli import numbers
from appliance.errors import AttestationError
from appliance.imaging.qemu import softtpm
from appliance.keys.document import LAST_VERSION
from appliance.keys.providers import FileKey
from appliance.keys.release import tpm
from appliance.policy.explaining.checking import load

HELP = "seal a model's key to PCRs of this machine's TPM"
DESCRIPTION = """Write FILE.tpm-key beside a sealed model: its key, given out by this TPM while the PCRs have the values
that they have now, or that measurements.json predicts. The TPM's operator can read the key. A vTPM's operator is
the host, so policies allow it only on the platforms tpm and simulated."""


def add_action(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the action."""
    action = actions.add_parser("tpm-seal", help=HELP, description=DESCRIPTION)
    action.add_argument("file", type=Path, help="the sealed model that the key opens")
    action.add_argument("--key", type=Path, required=True, help="the key file, mode 0600")
    action.add_argument("--key-version", type=numbers.whole(1, LAST_VERSION), required=True, metavar="N",
                        help="the version that policies name")
    action.add_argument("--pcrs", type=numbers.listed(0, 23, "4,9,11"), required=True, metavar="N,N,…",
                        help="as in the policy: 4,9,11 for example")
    action.add_argument("--measurements", type=Path, metavar="FILE",
                        help="seal to the boot of this image, not to the PCRs as they are now")
    action.add_argument("--machine", metavar="NAME", help="the recorded machine whose PCR 0 and 7 are meant")
    action.add_argument("--policy", type=Path, metavar="FILE",
                        help="with --measurements: the policy that PCR 15 will hold")
    chip = action.add_mutually_exclusive_group()
    chip.add_argument("--tpm", type=Path, default=DEVICE, metavar="PATH",
                      help="the TPM: a device, or a simulator's Unix socket (default: %(default)s)")
    chip.add_argument("--tpm-state", type=Path, metavar="DIR",
                      help="the software TPM of `appliance image boot --tpm-state`, while no guest has it; made if it "
                      "is not there")
    action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Seal, and say what belongs into the policy."""
    pcrs: Mapping[int, bytes] | list[int] = args.pcrs
    if args.measurements is not None:
        digest = None if args.policy is None else load(args.policy).digest
        measured = tpm.read_measurements(args.measurements)
        pcrs = tpm.predicted(args.pcrs, measured, args.machine, digest)
    elif args.policy is not None or args.machine is not None:
        raise AttestationError(f"{'--machine' if args.policy is None else '--policy'} needs --measurements",
                               code="tpm-prediction", hint="without it a key is sealed to the PCRs as they are now")
    with FileKey(args.key, args.key_version, bare=True).key() as key, _chip(args) as chip:
        path = tpm.seal_key(key, args.key_version, pcrs, args.file, chip)
    if args.json:
        print(json.dumps({"file": str(path), "pcrs": args.pcrs, "version": args.key_version}, indent=2))
    else:
        print(f'{path}: put it beside the model. In the policy:\n\nkey {{\n  provider = "tpm"\n'
              f"  version  = {args.key_version}\n  pcrs     = {args.pcrs}\n}}")
    return 0


def _chip(args: argparse.Namespace) -> AbstractContextManager[Path]:
    """Return the way to the TPM."""
    return contextlib.nullcontext(args.tpm) if args.tpm_state is None else softtpm.reached(args.tpm_state)
