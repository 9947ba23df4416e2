"""Fuzz target: headers against the cards of families. Only errors of the tree may come out, and what is accepted has a
program that names tensors which are there."""

from __future__ import annotations

from appliance.errors import ApplianceError, ModelError
from appliance.families.header import architecture_of
from appliance.families.program import program
from appliance.families.tensors import check_tensors
from appliance.models.file import gguf
from tests.support import family_models, mixture_models

DENSE = ("llama", "qwen3", "gemma3", "gemma4", "phi3", "gpt2")
_DATA_NBYTES = 1 << 40
"""What a file is taken to hold behind its header, so that seeds need no weights."""


def fuzz(data: bytes) -> None:
    """Judge the header in `data`; walk the program of what fits."""
    try:
        found = gguf.parse(data, _DATA_NBYTES)
    except ModelError:
        return
    try:
        shape = architecture_of(found.metadata, found.tensors)
        plan = check_tensors(shape, found.tensors)
    except ApplianceError as error:
        if not error.summary or len(str(error)) > 4000:
            raise AssertionError(f"a useless error: {len(str(error))} characters") from error
        return
    for op in program(shape, plan):
        missing = [name for name in op.weights if name not in found.tensors]
        if missing:
            raise AssertionError(f"{op.kind} of layer {op.layer} uses {missing}")


def seeds() -> list[bytes]:
    """The header of a model of each kind of family, and of every mixture of experts."""
    models = [family_models.model(name, ("Q8_0",)) for name in DENSE]
    models += [mixture_models.model(name) for name in mixture_models.MODELS]
    return [model[:gguf.parse(model).data_offset] for model in models]
