"""`appliance model`: inspect a model file, or print the pin that a policy needs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from tqdm import tqdm

from appliance.models import inspection, pins
from appliance.models.inspection import Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `model inspect` and `model pin`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (("inspect", "say what a model file contains"),
                       ("pin", "print the model block of a policy that pins this file")):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("file", type=Path, help="a GGUF file")
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run one action; exit code 0, or 2 by the error that the dispatcher prints."""
    return _inspect(args) if args.action == "inspect" else _pin(args)


def _inspect(args: argparse.Namespace) -> int:
    found = inspection.inspect(args.file)
    if args.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return 0
    for label, value in _lines(found):
        print(f"{label:<16}{value}")
    return 0


def _lines(found: Inspection) -> list[tuple[str, str]]:
    """The report as (label, value), what the file does not say left out."""
    rows: list[tuple[str, object]] = [
        ("file", found.path), ("size", _bytes(found.size)), ("GGUF version", found.gguf_version), ("name", found.name),
        ("architecture", found.architecture), ("context length", found.context_length), ("blocks", found.blocks),
        ("embedding", found.embedding_length), ("heads", found.heads), ("KV heads", found.kv_heads),
        ("weights", f"{found.weights:,}"), ("tokenizer", found.tokenizer), ("pre-tokenizer", found.pre_tokenizer),
        ("vocabulary", found.vocabulary), ("chat template", "yes" if found.chat_template else "no"),
    ]
    rows += [(f"  {use.name}", f"{use.tensors} tensors, {use.weights:,} weights, {_bytes(use.nbytes)}")
             for use in found.formats]
    rows += [(_printable(key.removeprefix("general.")), value) for key, value in found.licence.items()]
    return [(label, _printable(str(value))) for label, value in rows if value is not None]


def _printable(text: str) -> str:
    """Text of an untrusted file, so that it cannot drive the terminal."""
    return text if text.isprintable() else repr(text)


def _bytes(count: int) -> str:
    return f"{count:,} bytes ({count / 2**20:.1f} MiB)"


def _pin(args: argparse.Namespace) -> int:
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024, desc="hashing", disable=not sys.stderr.isatty(),
              leave=False) as bar:
        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        digest, size = pins.sha256_of(args.file, progress)
    if args.json:
        print(json.dumps({"file": args.file.name, "sha256": digest.hex(), "size": size}, indent=2))
    else:
        print(f"model {_quoted(args.file.stem)} {{\n  file   = {_quoted(args.file.name)}\n"
              f"  sha256 = \"{digest.hex()}\"\n}}")
    return 0


def _quoted(text: str) -> str:
    """A literal string of the policy language: JSON's escapes, and no interpolation."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
