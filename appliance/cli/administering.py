"""Asking a running appliance for what an admin may ask: it is verified first, as by `appliance
connect`; then an API key with the role `admin` is shown to it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.cli import verifying
from appliance.client import Channel, Verdict, target
from appliance.client.exchange import Refusal, send
from appliance.codec import strict
from appliance.codec.printable import plain
from appliance.errors import ApplianceError, AttestationError, PolicyError

VARIABLE = "APPLIANCE_API_KEY"
URL = "https://HOST:PORT, vsock://CID:PORT, or http://127.0.0.1:PORT (simulated)"
EXIT_CODES = ("exit codes: 0 done, 1 the appliance refused, 2 it cannot be asked; if it is not verified, that of the "
              "verdict (see appliance verify)")
MOST_BYTES = 1 << 20  # of an answer
MOST_TEXT = 4096      # characters of a refusal that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the appliance is compared with beside the policy, and the key."""
    verifying.add_image(parser)
    add_key(parser, "admin")
    verifying.add_accept(parser)


def add_key(parser: argparse.ArgumentParser, role: str) -> None:
    """Declare where the API key is, which has a role."""
    parser.add_argument("--api-key-file", metavar="FILE", type=Path,
                        help=f"a file with the API key, of the role {role} (default: the environment variable "
                        f"{VARIABLE})")


def run(args: argparse.Namespace, path: str, body: bytes | None, words: Callable[[Any], str], *,
        note: str = "") -> int:
    """Verify, ask, and print the answer in words; the exit code. A `body` is posted. `note` stands
    beside the line that says that the appliance is verified."""
    verdicts: list[Verdict] = []
    channel = Channel(verifying.verifier(args), target.endpoint(args.url), tell=verdicts.append,
                      accept=verifying.accepted(args))
    key = api_key(args)
    try:
        channel.verify()
    except AttestationError as error:
        if not verdicts:
            raise
        print(json.dumps({"exit_code": verdicts[-1].exit_code, **error.as_json()}) if args.json else
              f"error[{error.code}]: {error}", file=sys.stdout if args.json else sys.stderr)
        return verdicts[-1].exit_code
    if body is not None and not args.json:
        print(f"verified{note}", file=sys.stderr, flush=True)
    status, told = _asked(channel, key, path, body)
    if status != 200:
        return _refused(told, as_json=args.json)
    try:
        said = words(told)
    except (KeyError, TypeError):
        raise ApplianceError(f"{channel.endpoint}: the answer is not that of an appliance", code="no-answer") from None
    print(json.dumps(told) if args.json else said)
    return 0


def api_key(args: argparse.Namespace) -> str:
    """Return the API key. Raises PolicyError where there is none."""
    try:
        text = os.environ.get(VARIABLE, "") if args.api_key_file is None else args.api_key_file.read_text("ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise PolicyError(f"{args.api_key_file}: {reason}", code="api-key") from None
    if not text.strip().isprintable() or not text.strip():
        raise PolicyError("there is no API key", code="api-key", hint=f"set {VARIABLE}, or give --api-key-file FILE")
    return text.strip()


def _asked(channel: Channel, key: str, path: str, body: bytes | None) -> tuple[int, Any]:
    """Status and JSON value of the appliance's answer. ApplianceError where none comes."""
    headers = [("Authorization", f"Bearer {key}"), ("Accept", "application/json")]
    headers += [] if body is None else [("Content-Type", "application/json")]
    try:
        answer = send(channel, "GET" if body is None else "POST", path, headers, body or b"")
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
