"""`appliance tokenize MODEL.gguf TEXT`: the ids and pieces that a model's tokenizer gives for a
text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from appliance.boot.planning import inspection
from appliance.errors import ApplianceError
from appliance.models.file import gguf_kind
from appliance.text import tokenizer
from appliance.text.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="a GGUF file, or a sealed one")
    parser.add_argument("text", metavar="TEXT", help="the text")
    parser.add_argument("--parse-special", action="store_true", help="read the text of control tokens as the tokens")
    parser.add_argument("--add-special", action="store_true", help="add the tokens that the model wants around a text")
    parser.add_argument("--json", action="store_true", help="one JSON object: tokens, pieces, text")


def _tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a model file, even if the model does not run here. An error says what
    another file is."""
    metadata = inspection.header(path, any_format=True).metadata
    try:
        return tokenizer.load(metadata)
    except ApplianceError:
        gguf_kind.check(metadata)
        raise


def run(args: argparse.Namespace) -> int:
    """Print the tokens, one line each: id and piece."""
    found = _tokenizer(args.model)
    ids = found.encode(args.text, add_special=args.add_special, parse_special=args.parse_special)
    for warning in (*found.warnings, *(found.doubled(ids) if args.add_special else ())):
        print(f"warning: {warning}", file=sys.stderr)
    pieces = [found.piece(token).decode("utf-8", "replace") for token in ids]
    if args.json:
        print(json.dumps({"tokens": ids, "pieces": pieces, "text": found.decode(ids)}))
    else:
        print("\n".join(f"{token:>7}  {piece!r}" for token, piece in zip(ids, pieces, strict=True)))
    return 0
