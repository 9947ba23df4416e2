"""`appliance redact FILE`: what a policy's redaction, or some detectors, make of a text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from appliance.detectors.trial import Trial
from appliance.errors import ApplianceError
from appliance.policy.explaining.checking import load
from appliance.policy.schema import DETECTORS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8; -: standard input")
    by = parser.add_mutually_exclusive_group()
    by.add_argument("--policy", metavar="POLICY", help="apply the detectors and patterns of this policy")
    by.add_argument("--detectors", metavar="NAMES", type=_names,
                    help=f"apply these detectors, with commas between them: {', '.join(DETECTORS)} "
                    "(default without --policy: all)")
    parser.add_argument("--json", action="store_true",
                        help="one JSON object: text, and matches with detector, start, end, line and column")
    parser.epilog = ("Places count characters of the text: start and end from 0, line and column from 1.\n"
                     "exit codes: 0 the text is printed, whether or not something was replaced; 1 the policy is not\n"
                     "valid; 2 cannot run")


def _names(text: str) -> list[str]:
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in DETECTORS:
            raise argparse.ArgumentTypeError(f"{name!r} is not a detector: expected some of {', '.join(DETECTORS)}")
    return names


def _text(file: str) -> str:
    try:
        return (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except OSError as error:
        raise ApplianceError(f"{file}: {error.strerror}", code="text-unreadable",
                             hint="name a file that can be read, or - for standard input") from None
    except UnicodeDecodeError as error:
        raise ApplianceError(f"{file}: byte {error.start} is not UTF-8", code="text-unreadable",
                             hint="convert the text to UTF-8") from None


def run(args: argparse.Namespace) -> int:
    """Print the redacted text."""
    policy = None if args.policy is None else load(args.policy).policy
    trial = Trial(_text(args.file))
    if policy is None:
        trial.detect(args.detectors or DETECTORS)
    else:
        redaction = policy.privacy.redaction
        if policy.appliance.schema_version > 1:
            trial.detect(redaction.detectors)
        elif redaction.detectors:
            print("note: detectors are not enforced under schema 1: appliance check --upgrade writes schema 2",
                  file=sys.stderr)
        trial.replace(redaction.patterns)
    if args.json:
        matches = [match.as_json(trial.given) for match in sorted(trial.matches, key=lambda each: each.start)]
        print(json.dumps({"text": trial.text, "matches": matches}))
    else:
        sys.stdout.buffer.write(trial.text.encode())  # the text's own bytes, whatever the locale
    return 0
