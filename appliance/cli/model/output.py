"""The output of `appliance model`: quoted names, the model block of a policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from appliance.boot.planning import advice, forecast
from appliance.boot.planning.forecast import Fitness
from appliance.models.sealed import reader


def printable(text: str) -> str:
    """Text of an untrusted file, so that it cannot drive the terminal."""
    return text if text.isprintable() else repr(text)


def warn_unfit(path: Path) -> Fitness:
    """Say on standard error that a model file cannot run here, and why, if so."""
    fit = forecast.of_file(path)
    if fit.refusal is not None:
        print(f"note: this file cannot run here: {printable(fit.refusal.summary)}", file=sys.stderr)
        if fit.refusal.hint:
            print(f"  hint: {fit.refusal.hint}", file=sys.stderr)
    return fit


def quoted(text: str) -> str:
    """Return a literal string of the policy language: JSON's escapes, and no interpolation."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")


def sealed_block(path: Path, sha256: bytes, header_sha256: bytes, key: Path | None) -> str:
    """Return the model block of a policy for a sealed file; `key` as its key file, for development.
    It has the sampling that the file advises, by its own words."""
    where = "/path/to/key" if key is None else str(key.absolute())
    return (f"model {quoted(path.stem)} {{\n  file                 = {quoted(path.name)}\n"
            f"  sha256               = \"{sha256.hex()}\"\n"
            f"  sealed_header_sha256 = \"{header_sha256.hex()}\"\n\n"
            f"  key {{\n    provider = \"file\" # for platforms = [\"simulated\"]; else \"broker\" or \"tpm\"\n"
            f"    path     = {quoted(where)}\n  }}\n{advice.block(reader.structure(path)[1].gguf.metadata)}}}")
