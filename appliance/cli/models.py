"""`appliance models`: have a running appliance load and unload the models of its policy.

The appliance is verified first, as by `appliance connect`; then an API key with the role `admin` is
shown to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from appliance.cli import verifying
from appliance.client import Channel, Verdict, target
from appliance.client.exchange import Refusal, send
from appliance.codec import strict
from appliance.codec.printable import plain
from appliance.errors import ApplianceError, AttestationError, PolicyError

PATH = "/v1/admin/models"
VARIABLE = "APPLIANCE_API_KEY"
ACTIONS = {"list": "show the models of the policy, and which are loaded", "load": "load a model",
           "unload": "unload a model: its answers end before, and it is wiped",
           "swap": "unload one model and load another, in one generation"}
MOST_BYTES = 1 << 20  # of an answer
MOST_TEXT = 4096      # characters of a refusal that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions, each with the same options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in ACTIONS.items():
        one = actions.add_parser(name, help=about, description=about)
        one.add_argument("url", metavar="URL", help="https://HOST:PORT, vsock://CID:PORT, or http://127.0.0.1:PORT "
                         "(simulated)")
        if name == "swap":
            one.add_argument("unload", metavar="OLD", help="the model that leaves")
            one.add_argument("load", metavar="NEW", help="the model that comes")
        elif name != "list":
            one.add_argument(name, metavar="MODEL", help="its name in the policy")
        verifying.add_reference(one)
        one.add_argument("--api-key-file", metavar="FILE", type=Path, help="a file with the API key, of the role admin "
                         f"(default: the environment variable {VARIABLE})")
        verifying.add_accept(one)
        one.add_argument("--json", action="store_true", help="print the appliance's answer as JSON")
        one.epilog = ("exit codes: 0 done, 1 the appliance refused, 2 it cannot be asked; if it is not verified, that "
                      "of the verdict (see appliance verify)")


def run(args: argparse.Namespace) -> int:
    """Verify, ask, and print what is loaded then."""
    verdicts: list[Verdict] = []
    channel = Channel(verifying.verifier(args), target.endpoint(args.url), tell=verdicts.append,
                      accept=verifying.accepted(args))
    key = _key(args)
    try:
        channel.verify()
    except AttestationError as error:
        if not verdicts:
            raise
        print(json.dumps({"exit_code": verdicts[-1].exit_code, **error.as_json()}) if args.json else
              f"error[{error.code}]: {error}", file=sys.stdout if args.json else sys.stderr)
        return verdicts[-1].exit_code
    change = {name: value for name in ("load", "unload") if (value := getattr(args, name, None)) is not None}
    if change and not args.json:
        print("verified; a model is read whole before the answer comes" if "load" in change else "verified",
              file=sys.stderr, flush=True)
    status, told = _asked(channel, key, change)
    if status != 200:
        return _refused(told, as_json=args.json)
    try:
        table = _table(told)
    except (KeyError, TypeError):
        raise ApplianceError(f"{channel.endpoint}: the answer is not that of an appliance", code="no-answer") from None
    print(json.dumps(told) if args.json else table)
    return 0


def _key(args: argparse.Namespace) -> str:
    """The API key. PolicyError where there is none."""
    try:
        text = os.environ.get(VARIABLE, "") if args.api_key_file is None else args.api_key_file.read_text("ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise PolicyError(f"{args.api_key_file}: {reason}", code="api-key") from None
    if not text.strip().isprintable() or not text.strip():
        raise PolicyError("there is no API key", code="api-key", hint=f"set {VARIABLE}, or give --api-key-file FILE")
    return text.strip()


def _asked(channel: Channel, key: str, change: dict[str, str]) -> tuple[int, Any]:
    """Status and JSON value of the appliance's answer. ApplianceError where none comes."""
    headers = [("Authorization", f"Bearer {key}"), ("Accept", "application/json")]
    body = json.dumps(change).encode() if change else b""
    try:
        answer = send(channel, "POST" if change else "GET", PATH,
                      headers + ([("Content-Type", "application/json")] if change else []), body)
        try:
            data = b""
            while len(data) <= MOST_BYTES and (piece := answer.read()):
                data += piece
        finally:
            answer.close()
        return answer.status, strict.json_value(data[:MOST_BYTES])
    except Refusal as refusal:
        raise ApplianceError(refusal.message, code=refusal.code) from None
    except ValueError:
        raise ApplianceError(f"{channel.endpoint}: the answer is no JSON", code="no-answer") from None


def _refused(told: Any, *, as_json: bool) -> int:
    error = told.get("error") if isinstance(told, dict) else None
    error = error if isinstance(error, dict) else {}
    code, message = (plain(str(error.get(name, other)), MOST_TEXT) for name, other in (
        ("code", "no-answer"), ("message", "the appliance refused")))
    print(json.dumps({"exit_code": 1, "code": code, "reason": message, "hint": None}) if as_json else
          f"error[{code}]: {message}", file=sys.stdout if as_json else sys.stderr)
    return 1


def _table(told: Any) -> str:
    lines = [plain(f"{each['id']:24}{each['state']:12}load = \"{each['load']}\"") for each in told["data"]]
    return "\n".join([*lines, f"generation {told['generation']}"])
