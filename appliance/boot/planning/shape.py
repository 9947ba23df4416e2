"""The shape of a model that is not at hand: its header without its weights, to plan with.

Either the beginning of a GGUF file, at least to the end of its table of tensors, or JSON as
`appliance model inspect FILE --shape` prints it:

    {"metadata": {"general.architecture": "llama", "llama.block_count": 32, …},
     "header_nbytes": 800000, "longest_token": 48, "template": 3000,
     "tensors": {"token_embd.weight": ["Q4_K", [32000, 4096]], …}}

Bytes of the header, and characters of the longest token and of the chat template, may be left out.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import FormatError
from appliance.models.catalogue import Catalogue, KnownHeader, ModelFile
from appliance.models.file import gguf, quants, tiling
from appliance.models.file.gguf import GGUFFile, TensorInfo
from appliance.models.file.metadata import Strings
from appliance.models.file.tiling import Tiling
from appliance.policy.schema import Model

_ANY_SIZE = 1 << 62
_TOKENS, _TEMPLATES = "tokenizer.ggml.tokens", ("tokenizer.chat_template", "tokenizer.chat_template.tool_use")
_ALLOWED = ('a shape has "metadata", an object of numbers, texts and lists of numbers, and "tensors", an object of '
            '["FORMAT", [rows, columns]]')


class ShapeFile(ModelFile):
    """A model by its shape, plain or sealed with tiles of the usual size."""

    def __init__(self, path: Path, *, sealed: bool) -> None:
        super().__init__(path)
        self._is_sealed = sealed

    @functools.cached_property
    def sealed(self) -> bool:
        """Whether it is planned as a sealed model."""
        return self._is_sealed

    @property
    def nbytes(self) -> int:
        """Bytes that the file would have. Errors as `gguf`."""
        known = self._read()
        return known.size if known.tiles is None else known.tiles.end

    def _read(self) -> KnownHeader:
        if self._known is None:
            header = read(self.path)
            size = max([header.data_offset, *(info.offset + info.nbytes for info in header.tensors.values())])
            tiles = Tiling(header, size, tiling.DEFAULT_TILE_SIZE, gaps=False) if self._is_sealed else None
            self._known = KnownHeader(header, size, header.data_offset, b"", tiles, size)
            self.metadata = header.metadata
        return self._known


class ShapeCatalogue(Catalogue):
    """A catalogue in which the models of `shapes` are known by their shapes."""

    def __init__(self, paths: Mapping[str, Path], shapes: Mapping[str, Path]) -> None:
        super().__init__({**paths, **shapes})
        self._shapes = shapes

    @functools.lru_cache(64)  # noqa: B019 - lives as long as the command
    def _shape(self, name: str, sealed: bool) -> ShapeFile:
        return ShapeFile(self._shapes[name], sealed=sealed)

    def of(self, model: Model) -> ModelFile:
        """Return the file of a model."""
        if model.name in self._shapes:
            return self._shape(model.name, model.sealed_header_sha256 is not None)
        return super().of(model)


def read(path: Path) -> GGUFFile:
    """The header in a shape file. Raises FormatError and UnsupportedError for its content, OSError
    for the disk."""
    with path.open("rb") as file:
        start = file.read(gguf.MAX_HEADER_NBYTES)
    return gguf.parse(start, _ANY_SIZE) if start[:4] == gguf.MAGIC else _of_json(start)


def _of_json(data: bytes) -> GGUFFile:
    try:
        said = json.loads(data)
        metadata = {str(key): _value(value) for key, value in said["metadata"].items()}
        metadata |= _words(int(said.get("longest_token", 0)), int(said.get("template", 0)))
        at = offset = int(said.get("header_nbytes", 0))
        tensors = {}
        for name, (block_format, shape) in said["tensors"].items():
            tensors[name] = info = _tensor(name, quants.FORMATS[block_format], [int(size) for size in shape], at)
            at = info.offset + info.nbytes
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"this is neither the beginning of a GGUF file nor a shape: {type(error).__name__}",
                          hint=_ALLOWED) from None
    return GGUFFile(3, metadata, tensors, gguf.DEFAULT_ALIGNMENT, offset)


def _words(longest: int, template: int) -> dict[str, Any]:
    """Words of such lengths in the place of a vocabulary and a chat template."""
    if not 0 <= longest + template <= gguf.MAX_HEADER_NBYTES:
        raise ValueError
    token = Strings(b"x" * longest, np.array([0]), np.array([longest]))
    return ({_TOKENS: token} if longest else {}) | ({_TEMPLATES[0]: "x" * template} if template else {})


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return np.array(value, np.float64 if any(isinstance(each, float) for each in value) else np.int64)
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError
    return value


def _tensor(name: str, block_format: quants.BlockFormat, shape: list[int], at: int) -> TensorInfo:
    if not 1 <= len(shape) <= gguf.MAX_DIMENSIONS or min(shape) < 1:
        raise ValueError
    nbytes = block_format.row_nbytes(shape[-1]) * math.prod(shape[:-1])
    return TensorInfo(name, block_format, tuple(shape), at + -at % gguf.DEFAULT_ALIGNMENT, nbytes)


def as_json(header: GGUFFile) -> dict[str, Any]:
    """The shape of a model by its header: all that a plan needs, and no word of its vocabulary."""
    metadata = header.metadata
    said = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in metadata.items()
            if not key.startswith("tokenizer.") and not isinstance(value, Strings)}
    tokens, templates = metadata.get(_TOKENS), [metadata.get(key) for key in _TEMPLATES]
    if isinstance(tokens, Strings):
        said.setdefault(f"{metadata.get('general.architecture')}.vocab_size", len(tokens))
    return {"metadata": said, "header_nbytes": header.data_offset,
            "longest_token": tokens.longest() if isinstance(tokens, Strings) else 0,
            "template": sum(len(each) for each in templates if isinstance(each, str)),
            "tensors": {name: [info.format.name, list(info.shape)] for name, info in header.tensors.items()}}
