"""`appliance image successor`: name the next image, for an image with a state key in a TPM."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.attestation import keyfile
from appliance.cli import passphrase
from appliance.errors import ImageError
from appliance.keys.release import tpm
from appliance.policy import Loaded
from appliance.policy.explaining.checking import load
from appliance.policy.schema.keys import KeySource
from appliance.signed import desk

DESCRIPTION = """Sign the registers that a TPM will hold under an image and its policy. The image that runs now seals
its state key for them at its next boot, if its policy names the signer (state.successor.authority) and it finds the
document beside its models. Then the named image opens the same state disk."""


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the action."""
    action = actions.add_parser("successor", help="name the image that follows, so that it can open the state disk",
                                description=DESCRIPTION)
    action.add_argument("measurements", metavar="MEASUREMENTS", type=Path,
                        help="measurements.json of the image that follows, as `predict` wrote it")
    action.add_argument("--policy", metavar="FILE", type=Path, required=True, help="the policy that it will run")
    action.add_argument("--key", metavar="KEY.pem", type=Path, required=True,
                        help="the Ed25519 key (PKCS #8) of the authority that the policy of the image before names")
    action.add_argument("--machine", metavar="NAME", help="the recorded machine whose PCR 0 and 7 are meant")
    action.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("successor.json"),
                        help="where the document goes (default: %(default)s)")
    action.add_argument("--json", action="store_true", help="print the registers as JSON")


def _successor(args: argparse.Namespace) -> int:
    loaded, measured = load(args.policy), tpm.read_measurements(args.measurements)
    if measured.policy_sha384 not in (None, loaded.digest.hex()):
        raise ImageError(f"{args.policy} is not the policy of this image, which has {measured.policy_sha384} in it",
                         hint="name the policy that the image was built with")
    key = keyfile.ed25519_private_key(args.key, passphrase.ask)
    pcrs = tpm.predicted(_state_key(args.policy, loaded).pcrs or (), measured, args.machine, loaded.digest)
    keyfile.write_whole(args.output, desk.sign_successor(loaded.policy.appliance.name, pcrs, key))
    if args.json:
        print(json.dumps({"file": str(args.output), "pcrs": {str(number): value.hex()
                                                             for number, value in pcrs.items()}}, indent=2))
    else:
        print("\n".join(f"PCR {number:2d}  {value.hex()}" for number, value in pcrs.items()))
        print(f"{args.output}: put it beside the models of the image before, and boot that once")
    return 0


def _state_key(path: Path, loaded: Loaded) -> KeySource:
    state = loaded.policy.state
    if state is None or state.key.provider != "tpm":
        raise ImageError(f"{path} has no state key in a TPM", hint='write provider = "tpm" and pcrs in its state block')
    return state.key


ACTIONS = {"successor": _successor}
