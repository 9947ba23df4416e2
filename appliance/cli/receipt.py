"""`appliance receipt`: verify an answer's receipt offline, or compute the answer again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from appliance.auditor import held, receipts
from appliance.auditor.receipts import KeptReceipt, ReceiptDemands
from appliance.cli import numbers
from appliance.codec import strict
from appliance.codec.printable import quantity
from appliance.errors import NoteError
from appliance.policy.explaining import checking
from appliance.receipts import dsse, envelopes
from appliance.receipts.statement import Receipt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    verify = _action(actions, "verify", "tell whether a receipt holds, and for what",
                     "exit codes: 0 it holds, 1 it does not, 2 it cannot be judged")
    verify.add_argument("--request", metavar="FILE", type=Path, help="the request's body as it was sent")
    verify.add_argument("--bundle", metavar="FILE", type=Path, help="the proof that the log has the answer's record: "
                        "appliance audit export LOG --receipt ANSWER")
    verify.add_argument("--parts", metavar="DIR", type=Path,
                        help="write there what openssl verifies: signed bytes, signature, key")
    replay = _action(actions, "replay", "verify a receipt, and compute its answer again on the pinned model",
                     "exit codes: 0 every token is what the model says, 1 one is not, or the receipt does not hold, "
                     "2 it cannot be told")
    replay.add_argument("--model", metavar="FILE", type=Path, required=True, help="the model's file, plain or sealed")
    replay.add_argument("--model-key", metavar="FILE", type=Path, help="the key of a sealed model")
    replay.add_argument("--target", metavar="NAME", help="compute with the kernels of this CPU target, such as avx2 or "
                        "portable: each gives the same bits (default: the best of this CPU)")
    replay.add_argument("--threads", metavar="N", type=numbers.whole(1, 1024), help="threads (default: all CPUs)")
    replay.add_argument("--plain", metavar="FILE", type=Path,
                        help="write there the answer as examples/plain_engine.py reads it")


def _action(actions: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text, epilog=epilog)
    action.add_argument("answer", metavar="ANSWER", type=Path,
                        help="the answer's body as it came, whole or streamed; or only its receipt")
    action.add_argument("--key", metavar="KEY", help="the audit key that evidence binds, in hex")
    action.add_argument("--evidence", metavar="FILE", type=Path,
                        help="evidence that `appliance verify` accepted: its key, policy, self-test and build count")
    action.add_argument("--policy", metavar="FILE", type=Path, help="the deployment's policy")
    action.add_argument("--auditor-key", metavar="FILE", type=Path,
                        help="the private key of privacy.auditor_key, X25519 in PEM: it opens what the policy keeps "
                        "from clients")
    action.add_argument("--measurement", metavar="HEX", help="the launch measurement that is expected")
    action.add_argument("--json", action="store_true", help="print JSON")
    return action


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    taken, expected = receipts.take(held.content(args.answer, receipts.MAX_ANSWER_BYTES)), _expected(args)
    request = None if getattr(args, "request", None) is None else held.content(args.request, 64 << 20)
    if args.auditor_key is not None:
        taken = receipts.unsealed(taken, held.auditor_key(args.auditor_key))
    try:
        receipt, checked = receipts.verify(taken, expected, request=request, proof=_bundle(args))
    except NoteError as error:
        return _failed(args, error)
    if args.action == "replay":
        return _replay(args, taken, receipt)
    if args.parts is not None:
        _write_parts(args.parts, taken, expected.key)
    if args.json:
        print(json.dumps({"holds": True, "checked": checked, "statement": receipts.as_json(receipt)}, indent=2))
    else:
        _tell(receipt, checked)
    return 0


def _bundle(args: argparse.Namespace) -> bytes | None:
    path: Path | None = getattr(args, "bundle", None)
    return None if path is None else held.content(path, 64 << 20)


def _expected(args: argparse.Namespace) -> ReceiptDemands:
    said = {} if args.evidence is None else _statement(args.evidence)
    key = args.key or said.get("audit_key_ed25519")
    if not key:
        raise NoteError("no key to verify by", hint="name the attested audit key with --key, or --evidence")
    loaded = None if args.policy is None else checking.load(args.policy)
    digest = said.get("policy_sha384") if loaded is None else loaded.digest.hex()
    return ReceiptDemands(held.public_key(key), digest, None if loaded is None else loaded.policy,
                    said.get("self_test_sha384"), args.measurement, said.get("code_sha384"))


def _statement(path: Path) -> dict[str, str]:
    """Return the facts of the statement in a file of evidence, which nobody verifies here: texts,
    by their names. Raises NoteError."""
    try:
        said = strict.json_value(held.content(path, 8 << 20))["statement"]
        found = {**said, "code_sha384": (said.get("build") or {}).get("code_sha384")}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError(f"{path}: not evidence", hint="appliance verify --save writes it") from None
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _failed(args: argparse.Namespace, error: NoteError) -> int:
    if args.json:
        print(json.dumps({"holds": False, "reason": error.summary}, indent=2))
    else:
        print(f"does not hold: {error.summary}")
    return 1


def _tell(receipt: Receipt, checked: list[str]) -> None:
    print(f"holds: {', '.join(checked)}")
    print(f"model        {receipt.model.name}, sha256 {receipt.model.sha256}")
    if receipt.model.publisher is not None:
        print(f"publisher    {receipt.model.publisher}" + (
            "" if receipt.model.publisher_identity is None else f", {receipt.model.publisher_identity}"))
    print(f"policy       {receipt.policy_sha384}")
    print(f"image        {receipt.image.platform}, measurement {receipt.image.measurement or 'none'}")
    number = "not said" if receipt.record.seq is None else receipt.record.seq
    print(f"record       {number} of log {receipt.record.log}, epoch {receipt.record.epoch}")
    print(f"time         {receipt.time} (the host's clock)")


def _write_parts(folder: Path, taken: KeptReceipt, key: bytes) -> None:
    """Write the files that a stranger's tools need: docs/formats/receipt.md has the steps."""
    payload, signature = envelopes.parts(taken.envelope)
    folder.mkdir(exist_ok=True)
    (folder / "signed.bin").write_bytes(dsse.encoding(payload))
    (folder / "signature.bin").write_bytes(signature)
    (folder / "key.der").write_bytes(bytes.fromhex("302a300506032b6570032100") + key)
    (folder / "statement.json").write_bytes(payload)
    salts = taken.opening.get("salts", {})
    for name in ("answer", "request"):
        if name in salts:
            (folder / f"{name}.salt").write_bytes(bytes.fromhex(salts[name]))
    if taken.answer is not None:
        (folder / "answer.bin").write_bytes(taken.answer)


def _replay(args: argparse.Namespace, taken: KeptReceipt, receipt: Receipt) -> int:
    from appliance.auditor import replay

    found = replay.replay(receipt, taken.opening, args.model, key=args.model_key, threads=args.threads,
                          target=args.target)
    if args.plain is not None and found.wrong is None:
        args.plain.write_text(json.dumps(replay.plain(taken.opening, found)))
    wrong = None if found.wrong is None else {"token": found.wrong[0] + 1, "model_says": found.wrong[1]}
    if args.json:
        print(json.dumps({"holds": True, "tokens": found.tokens, "wrong": wrong, "target": found.target}, indent=2))
    elif found.wrong is None:
        print(f"what the model says, by kernels of {found.target}: all of {quantity(found.tokens, 'token')}")
    else:
        print(f"token {found.wrong[0] + 1} is not what the model says", file=sys.stderr)
    return 0 if found.wrong is None else 1
