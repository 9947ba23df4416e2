"""`appliance machines`: make the list of machines that a policy demands, sign it as its authority,
and show it."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.case.machine import EK, Custody, MachineId
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import MAX_BYTES, examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tpm.judging import ek
from appliance.cli import passphrase, verifying
from appliance.codec.printable import plain, quantity
from appliance.errors import PolicyError, UncheckedEvidenceError, about
from appliance.policy import inputfile
from appliance.policy.explaining.checking import load
from appliance.signed import machines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _declare_add(actions)
    sign = _action(actions, "sign", "sign a list as the authority that a policy pins",
                   "exit codes: 0 signed, 2 not in form, or cannot run")
    sign.add_argument("--key", metavar="KEY.pem", type=Path, required=True,
                      help="sign with this Ed25519 private key (PKCS #8)")
    sign.add_argument("-o", "--output", metavar="OUT", type=Path, help="where the signed list goes")
    show = _action(actions, "show", "show a list, signed or not; with --policy, check that the policy accepts it",
                   "exit codes: 0 shown, and accepted if there is a policy, 2 not in form, not accepted, or cannot run")
    show.add_argument("--policy", metavar="POLICY", type=Path, help="check that this policy accepts the signed list")


def _action(actions: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    action.add_argument("list", metavar="LIST", type=Path, help="the list, in JSON")
    action.add_argument("--json", action="store_true", help="print JSON (a signed list is JSON in any case)")
    return action


def _declare_add(actions: Any) -> None:
    add = _action(actions, "add", "add machines to a list that is not signed yet; without LIST, begin one",
                  "The version of LIST rises by one where anything changes.\n"
                  "exit codes: 0 done, 2 not in form, evidence that is not genuine or names no machine, or cannot run")
    add.add_argument("--evidence", metavar="FILE", type=Path, action="append", default=[],
                     help="evidence of the machine, on SEV-SNP or TDX, as `appliance evidence` reads it; may be "
                     "repeated")
    add.add_argument("--ek", metavar="FILE", type=Path, action="append", default=[],
                     help="a TPM's endorsement key, or its certificate; may be repeated")
    add.add_argument("--custody", metavar="TEXT", required=True,
                     help=f"the machine's holder and place, in 1 to {machines.MAX_NOTE} characters")
    add.add_argument("--not-after", metavar="TIME", type=verifying.time,
                     help="the last moment at which the entries count (default: until a newer list)")
    add.add_argument("--appliance", metavar="NAME", help="for a new list: the name in the policy's `appliance` block")
    add.add_argument("--collateral", metavar="DIR", type=Path,
                     help="where certificates and so on are, under any names (default: FILE's folder)")
    add.add_argument("--at", metavar="TIME", type=verifying.time, help="judge evidence by this time (default: now)")
    add.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                     help="for tests only: believe another root as well")


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    return {"add": _add, "sign": _sign, "show": _show}[args.action](args)


def _add(args: argparse.Namespace) -> int:
    if not args.evidence and not args.ek:
        raise PolicyError("there is no machine to add", code="machines-unnamed",
                          hint="name evidence of it: --evidence FILE; of a TPM its endorsement key: --ek FILE")
    listed = _begun(args)
    found = [_named(path, args) for path in args.evidence]
    found += [MachineId(EK, ek.name_of(keyfile.read(path, "endorsement key"))) for path in args.ek]
    until = None if args.not_after is None else args.not_after.replace(microsecond=0)
    with about(args.list):
        listed = machines.added(listed, found, Custody(args.custody, until))
    keyfile.write_whole(args.list, json.dumps(listed, indent=2).encode() + b"\n")
    if args.json:
        print(json.dumps({"file": str(args.list), "version": listed["version"], "machines": len(listed["machines"]),
                          "added": [{"kind": each.kind, "id": each.value.hex()} for each in found]}))
    else:
        print(*(f"added: {each}" for each in found), _summary(listed, "not signed yet"), sep="\n")
    return 0


def _begun(args: argparse.Namespace) -> dict[str, Any]:
    """Return the list to add to, or an empty one."""
    if not args.list.exists():
        if args.appliance is None:
            raise PolicyError(f"{args.list} is a new list, and nothing names its deployment",
                              code="machines-other", hint="--appliance NAME, as the policy's `appliance` block has it")
        return {"appliance": args.appliance, "machines": [], "version": 0}
    with about(args.list):
        listed, signed = machines.shown(machines.read(args.list))
        machines.check(listed)
    if signed:
        raise PolicyError(f"{args.list} is signed, and its signature would not hold for another list",
                          code="machines-signed", hint="add to the list that was signed; it is the file's `list`")
    if args.appliance not in (None, listed["appliance"]):
        raise PolicyError(f"{args.list} is for {plain(listed['appliance'], 64)}, not for {plain(args.appliance, 64)}",
                          code="machines-other", hint="leave --appliance out, or begin another list")
    return listed


def _named(path: Path, args: argparse.Namespace) -> MachineId:
    """Return the machine that genuine evidence is of, by its first name."""
    try:
        data = inputfile.read(path, MAX_BYTES)
    except OSError as error:
        raise UncheckedEvidenceError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
    material = Material(data, path, collateral_folder.load(args.collateral or path.parent),
                        roots=verifying.roots(args.unsafe_root))
    record = examine(material, at=args.at or datetime.now(UTC))
    if record.stopped is not None:
        raise type(record.stopped)(f"{path}: {record.verdict}: {record.reason}", code=record.code, hint=record.hint)
    if record.names is None or isinstance(record.names, str):
        why = record.names or "it is a TPM's, which a challenge alone shows: give its endorsement key, by --ek FILE"
        raise UncheckedEvidenceError(f"{path} names no machine: {why}", code="machines-unnamed",
                                     hint="a list has chips, platforms and TPMs by their own names")
    return record.names[0]


def _sign(args: argparse.Namespace) -> int:
    with about(args.list):
        listed = machines.decode(machines.read(args.list), machines.LIST_KEYS)
    key = keyfile.ed25519_private_key(args.key, passphrase.ask)
    with about(args.list):
        signed = machines.sign(listed, key)
    if args.output is None:
        print(signed.decode(), end="")
        return 0
    keyfile.write_whole(args.output, signed)
    if args.json:
        print(json.dumps({"file": str(args.output), "version": listed["version"],
                          "machines": len(listed["machines"])}))
    return 0


def _show(args: argparse.Namespace) -> int:
    data = machines.read(args.list)
    policy = None if args.policy is None else load(args.policy).policy
    with about(args.list):
        listed, signed = machines.shown(data)
        machines.check(listed)
        if policy is not None:
            machines.parse(data, policy)
    if args.json:
        print(json.dumps({**listed, "signed": signed, "accepted": None if policy is None else True}, indent=2))
        return 0
    state = "not signed yet" if not signed else (
        "signed; --policy checks by whom" if policy is None else "accepted by the policy")
    print(_summary(listed, state))
    for each in listed["machines"]:
        until = "" if each["not_after"] is None else f", until {each['not_after']}"
        print(f"{each['kind']} {each['id']}{until}: {plain(each['custody'])}")
    return 0


def _summary(listed: dict[str, Any], state: str) -> str:
    count = quantity(len(listed["machines"]), "machine")
    return f"version {listed['version']}, {count}, for {plain(listed['appliance'], 64)}, {state}"
