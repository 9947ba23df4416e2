"""Whether a model file can run here, and why not: the decisive reason first, by its header alone.

    kind          a part of a model, an adapter, a projector, a vocabulary: no model that answers by itself
    architecture  what we run, and its features
    tensors       their formats, dimensions and names
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from appliance.boot.planning.footprint import foreign_reason, rope_of
from appliance.errors import ApplianceError, ModelError, TemplateError
from appliance.families.architecture import Architecture
from appliance.families.extension import Extension, extended_metadata
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors, roles
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file import gguf, gguf_kind
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.metadata import Metadata
from appliance.models.file.roles import check_runnable
from appliance.models.sealed.header import MAGIC
from appliance.policy.schema import Model, Policy
from appliance.text.template import ChatTemplate

Doubt = Callable[[Model, GGUFFile], ApplianceError | None]
"""What else may be wrong with a model, by the header of its file."""


def judge(metadata: Metadata) -> None:
    """Refuse a file by its metadata: UnsupportedError and FormatError for its kind and
    architecture."""
    gguf_kind.check(metadata)
    architecture_of(metadata)


def header(file: ModelFile) -> GGUFFile:
    """The header of a file, also with tensors in formats that do not run here. Where it cannot be
    read to its end, what its metadata say against it comes first. ModelError."""
    try:
        return file.gguf
    except ModelError:
        if file.metadata is not None:
            judge(file.metadata)
        raise


def refusals(policy: Policy, catalogue: Catalogue, models: Sequence[Model] | None = None, *,
             also: Doubt = lambda model, header: None) -> Iterator[tuple[Model, ApplianceError]]:
    """The policy's models (or those of `models`) whose files cannot run here, and why. A file that
    is not there is not among them. `also`: what else to look at."""
    for model in policy.models if models is None else models:
        file = catalogue.of(model)
        there = os.path.isfile(file.path)  # noqa: PTH113 - it raises nothing
        error = _refusal(policy, model, file, also) if there else None
        if error is not None:
            yield model, error


def template_refusals(policy: Policy) -> Iterator[tuple[Model, TemplateError]]:
    """The policy's models with a chat template of its own that no model could use, and why."""
    for model in policy.models:
        try:
            ChatTemplate.from_metadata({}, override=model.chat_template, fallback="chatml")
        except TemplateError as error:
            yield model, error


def description(name: str, path: Path, error: ApplianceError, *, hint: bool = True) -> str:
    """A refusal with the model and its file, and what to do."""
    summary = error.summary if str(path) in error.summary else f"{path}: {error.summary}"
    return f"model {name}: {summary}" + (f"; {error.hint}" if hint and error.hint else "")


def _refusal(policy: Policy, model: Model, file: ModelFile, also: Doubt) -> ApplianceError | None:
    """Why a policy's model cannot run here; llama.cpp may run what our engine does not."""
    try:
        found = _header_of(model, file)
        shape_of(found, rope_of(model))
    except ModelError as error:
        return error if foreign_reason(model, file, policy) is None else None
    return also(model, found)


def _header_of(model: Model, file: ModelFile) -> GGUFFile:
    """The header of a policy's model: that of a sealed one is not parsed unless it is the pinned
    one."""
    if model.sealed_header_sha256 is None and file.sealed:
        gguf.parse(MAGIC)  # says that it is sealed, and what to do
    return header(file)


def shape_of(file: GGUFFile, rope: Extension | None = None) -> Architecture:
    """The architecture of a file that can run, as far as kind, architecture and tensors tell.
    Errors as `judge`."""
    gguf_kind.check(file.metadata, len(file.tensors))
    shape = architecture_of(extended_metadata(file.metadata, rope, file.tensors), file.tensors)
    check_runnable(file, roles(shape, file.tensors))
    check_tensors(shape, file.tensors)
    return shape
