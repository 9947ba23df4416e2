"""The statements of a model file about itself, from its header alone: for people and scripts, not
for the engine."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.models.catalogue import ModelFile
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.metadata import Metadata, Strings
from appliance.models.sealed.reader import structure
from appliance.text.tokenizer.vocabulary import DEFAULT_PRE, PREFIX

_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FormatUse:
    """How much of a model is stored in one block format."""

    name: str
    tensors: int
    weights: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SealedUse:
    """How a model is sealed, by its own words. Digests in hex."""

    sha256: str  # of the GGUF file
    sealed_header_sha256: str
    plain_size: int  # of the GGUF file, bytes
    tile_size: int  # bytes
    tiles: int
    gaps: bool  # whether bytes outside of header and tensors are sealed too


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model file in brief. None where the file does not say."""

    path: str
    size: int  # bytes
    gguf_version: int
    name: str | None
    architecture: str | None
    context_length: int | None  # tokens
    blocks: int | None
    embedding_length: int | None
    heads: int | None
    kv_heads: int | None
    weights: int
    formats: tuple[FormatUse, ...]  # the largest first
    tokenizer: str | None
    pre_tokenizer: str | None
    pre_tokenizer_used: str | None  # llama.cpp's default where the file names none
    vocabulary: int | None  # tokens
    chat_template: bool
    named_templates: tuple[str, ...]  # beside it; "tool_use" is for requests with tools
    licence: dict[str, str]  # the file's own words, by metadata key
    keys: int
    sealed: SealedUse | None  # of a sealed file
    shards: int  # files that the model is in


def inspect(path: Path) -> Inspection:
    """Read the header of the file at `path`, plain or sealed. ModelError for what the disk does,
    FormatError for malformed bytes."""
    file = ModelFile(path)
    if not file.sealed:
        return _inspection(path, file.stored, file.gguf, None, len(file.files))
    found, tiles = structure(path)
    use = SealedUse(found.sha256.hex(), found.digest.hex(), found.size, found.tile_size, len(tiles), found.gaps)
    return _inspection(path, tiles.end, tiles.gguf, use)


def header(path: Path, *, any_format: bool = False) -> GGUFFile:
    """The parsed GGUF header of the file at `path`, plain or sealed, of which nothing is
    authenticated. `any_format`: tensors of a plain file may be in formats that do not run here.
    Errors as `inspect`."""
    return ModelFile(path).gguf if any_format else ModelFile(path).supported


def is_sealed(path: Path) -> bool:
    """Whether the file calls itself a sealed model. ModelError for what the disk does."""
    return ModelFile(path).sealed


def _inspection(path: Path, size: int, file: GGUFFile, use: SealedUse | None, shards: int = 1) -> Inspection:
    metadata = file.metadata
    architecture = _text(metadata, "general.architecture")
    tokens = metadata.get("tokenizer.ggml.tokens")

    def number(key: str) -> int | None:
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len({*value.tolist()}) == 1:
            return int(value[0])
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return Inspection(
        path=str(path), size=size, gguf_version=file.version, name=_text(metadata, "general.name"),
        architecture=architecture, context_length=number("context_length"), blocks=number("block_count"),
        embedding_length=number("embedding_length"), heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"), weights=sum(use.weights for use in _formats(file)),
        formats=_formats(file), tokenizer=_text(metadata, "tokenizer.ggml.model"),
        pre_tokenizer=_text(metadata, "tokenizer.ggml.pre"), pre_tokenizer_used=pre_tokenizer_used(metadata),
        vocabulary=len(tokens) if isinstance(tokens, Strings) else None,
        chat_template=_TEMPLATE in metadata, named_templates=tuple(sorted(
            key.removeprefix(_TEMPLATE + ".")[:64] for key in metadata if key.startswith(_TEMPLATE + "."))),
        licence=_licence(metadata), keys=len(metadata),
        sealed=use, shards=shards,
    )


def _formats(file: GGUFFile) -> tuple[FormatUse, ...]:
    """Block formats in use, by bytes."""
    tensors: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for info in file.tensors.values():
        tensors[info.format.name] += 1
        weights[info.format.name] += math.prod(info.shape)
        nbytes[info.format.name] += info.nbytes
    return tuple(FormatUse(name, tensors[name], weights[name], count) for name, count in nbytes.most_common())


def _licence(metadata: Metadata) -> dict[str, str]:
    """The keys that tell whose the model is and on what terms."""
    wanted = ("general.license", "general.author", "general.organization", "general.url", "general.source",
              "general.repo_url")
    return {key: value for key, value in metadata.items()
            if key.startswith(wanted) and isinstance(value, str)}


def _text(metadata: Metadata, key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def pre_tokenizer_used(metadata: Metadata) -> str | None:
    """The name of the pre-tokenizer that cuts a model's texts; None for a tokenizer that has none,
    or is not known."""
    model, name = metadata.get(PREFIX + "model"), metadata.get(PREFIX + "pre")
    if model == "gpt2":
        return name if isinstance(name, str) and name else DEFAULT_PRE
    return "gemma4" if model == "gemma4" else None
