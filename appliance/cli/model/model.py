"""`appliance model`: inspect and pin model files; seal, unseal, verify and sign them; make keys,
seal them to a TPM."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from appliance.boot.planning import advice, fitness, forecast, inspection, shape
from appliance.boot.planning.forecast import Fitness
from appliance.boot.planning.inspection import Inspection
from appliance.cli.bars import bar
from appliance.cli.model import seal, tpm
from appliance.cli.model.output import printable, quoted, warn_unfit
from appliance.codec.printable import quantity
from appliance.errors import ModelError, UnsupportedError
from appliance.models.catalogue import ModelFile
from appliance.models.file.metadata import Metadata
from appliance.sealing import digests


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (("inspect", "say what a model file contains, plain or sealed"),
                       ("pin", "print the model block of a policy that pins this file")):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("file", type=Path, help="a GGUF file, or a sealed one")
        action.add_argument("--json", action="store_true", help="print JSON")
        if name == "inspect":
            action.add_argument("--shape", action="store_true", help="print the header without its vocabulary as "
                                "JSON, for `appliance plan-memory --shape` where the file is not at hand")
    seal.add_actions(actions)
    tpm.add_action(actions)


def run(args: argparse.Namespace) -> int:
    """Run one action; exit code 0, 1 where `verify` refuses, or 2 by the error that the dispatcher
    prints."""
    if args.action == "tpm-seal":
        return tpm.run(args)
    if args.action in seal.ACTIONS:
        return seal.ACTIONS[args.action](args)
    return _inspect(args) if args.action == "inspect" else _pin(args)


def _inspect(args: argparse.Namespace) -> int:
    if args.shape:
        print(json.dumps(shape.as_json(inspection.header(args.file)), indent=1))
        return 0
    try:
        found = inspection.inspect(args.file)
    except ModelError:
        fitness.header(ModelFile(args.file))  # an objection to its metadata comes first
        raise
    fit = forecast.of_file(args.file)
    if args.json:
        print(json.dumps({**dataclasses.asdict(found), **_as_json(fit), "warnings": fit.warnings}, indent=2))
        return 0
    for label, value in _lines(found, fit):
        print(f"{label:<16}{value}")
    return 0


def _as_json(fit: Fitness) -> dict[str, object]:
    """Return whether a file runs here; else why not, and what to do."""
    error = fit.refusal
    return {"runs": fit.runs, "reason": None if error is None else error.summary,
            "hint": None if error is None else error.hint}


def _fit_lines(fit: Fitness) -> list[tuple[str, object]]:
    error = fit.refusal
    if error is None:
        return [("runs here", "yes"), *(("warning", warning) for warning in fit.warnings)]
    return [("runs here", f"no: {error.summary}"), ("", f"hint: {error.hint}" if error.hint else None)]


def _lines(found: Inspection, fit: Fitness) -> list[tuple[str, str]]:
    """Return the report as (label, value), what the file does not say left out."""
    rows: list[tuple[str, object]] = [
        ("file", found.path), ("shards", found.shards if found.shards > 1 else None), ("size", _bytes(found.size)),
        *_fit_lines(fit), *_sealed_lines(found),
        ("GGUF version", found.gguf_version), ("name", found.name),
        ("architecture", found.architecture), ("context length", found.context_length), ("blocks", found.blocks),
        ("embedding", found.embedding_length), ("heads", found.heads), ("KV heads", found.kv_heads),
        ("weights", f"{found.weights:,}"), ("tokenizer", found.tokenizer), ("pre-tokenizer", _pre_tokenizer(found)),
        ("vocabulary", found.vocabulary), ("chat template", _template(found)),
    ]
    rows += [(f"  {use.name}", f"{quantity(use.tensors, 'tensor')}, {use.weights:,} weights, {_bytes(use.nbytes)}")
             for use in found.formats]
    rows += [(printable(key.removeprefix("general.")), value) for key, value in found.licence.items()]
    return [(label, printable(str(value))) for label, value in rows if value is not None]


def _template(found: Inspection) -> str:
    """Return whether there is a chat template, and the names of others beside it."""
    others = f", and by name: {', '.join(found.named_templates)}" if found.named_templates else ""
    return ("yes" if found.chat_template else "no") + others


def _pre_tokenizer(found: Inspection) -> str | None:
    """Return the pre-tokenizer that the file names, or its replacement."""
    used = found.pre_tokenizer_used
    if found.pre_tokenizer or used is None:
        return found.pre_tokenizer
    return f"{used} (the file names none)"


def _sealed_lines(found: Inspection) -> list[tuple[str, object]]:
    use = found.sealed
    if use is None:
        return []
    return [("sealed", "by its own words: nothing below is authenticated without the key"), ("sha256", use.sha256),
            ("header sha256", use.sealed_header_sha256), ("plain size", _bytes(use.plain_size)),
            ("tiles", f"{use.tiles:,} of at most {_bytes(use.tile_size)}")]


def _bytes(count: int) -> str:
    return f"{count:,} bytes ({count / 2**20:.1f} MiB)"


def _pin(args: argparse.Namespace) -> int:
    if inspection.is_sealed(args.file):
        warn_unfit(args.file)
        return seal.pin_sealed(args)
    metadata: Metadata = {}
    try:
        metadata = inspection.header(args.file, any_format=True).metadata
    except UnsupportedError:  # llama.cpp may run it
        pass
    except ModelError:
        fitness.header(ModelFile(args.file))  # an objection to its metadata comes first
        raise
    fit = warn_unfit(args.file)
    with bar("hashing") as progress:
        hashes, size = digests.hashes_of(args.file, progress)
    each = [digest.hex() for digest in hashes.shards]
    if args.json:
        print(json.dumps({"file": args.file.name, "sha256": hashes.pin.hex(), **({"shards": each} if each else {}),
                          "size": size, "sampling": advice.of(metadata), **_as_json(fit)}, indent=2))
    else:
        listed = "".join(f'    "{digest}",\n' for digest in each)
        listed = f"  shards = [ # schema 2\n{listed}  ]\n" if each else ""
        print(f"model {quoted(args.file.stem)} {{\n  file   = {quoted(args.file.name)}\n"
              f"  sha256 = \"{hashes.pin.hex()}\"\n{listed}{advice.block(metadata)}}}")
    return 0
