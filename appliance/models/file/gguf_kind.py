"""The kinds of GGUF files beside a model that answers by itself: a part of one, an addition to one,
or for other work.

The container is the same for all. `general.type`, the architecture and a few keys tell them apart;
files of before `general.type` by the architecture alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from appliance.errors import UnsupportedError
from appliance.models.file.metadata import Metadata, optional_int


class GGUFKind(NamedTuple):
    """The kind of a file, and what to do."""

    what: str
    hint: str


_LORA = GGUFKind("a LoRA adapter, which changes another model",
                 "merge it into its model with llama.cpp's llama-export-lora, and use the result")
_PROJECTOR = GGUFKind("a projector (mmproj), which gives another model pictures or sound",
                      "use the file of the language model beside it; pictures and sound are not taken here")
_VECTOR = GGUFKind("a control vector, which steers another model", "use the file of the model itself")
_MATRIX = GGUFKind("an importance matrix (imatrix), which is for quantising a model",
                   "use the file of the model itself")
_VOCABULARY = GGUFKind("a vocabulary without weights", "use a file of the whole model; `appliance tokenize` takes this")
_ENCODER = GGUFKind("a model that makes embeddings or rankings and writes no text", "use a model that generates text")
_SPEECH = GGUFKind("a model for speech or sound, which writes no text here", "use a language model")
_PICTURES = GGUFKind("a model that makes pictures", "use a language model")
_DRAFT = GGUFKind("a draft head, which guesses the tokens of another model and cannot run alone",
                  "use the file of the model itself; draft_model takes a small whole model of the same vocabulary")

_TYPES: Mapping[str, GGUFKind] = MappingProxyType({
    "adapter": _LORA, "lora": _LORA, "mmproj": _PROJECTOR, "projector": _PROJECTOR, "clip-vision": _PROJECTOR,
    "imatrix": _MATRIX, "controlvector": _VECTOR, "vocab": _VOCABULARY})
_ARCHITECTURES: Mapping[str, GGUFKind] = MappingProxyType({
    **dict.fromkeys(("clip", "mmproj", "siglip"), _PROJECTOR), "controlvector": _VECTOR, "imatrix": _MATRIX,
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
                     "eurobert", "t5encoder", "gemma-embedding", "llama-embed", "xlm-roberta"), _ENCODER),
    **dict.fromkeys(("whisper", "wavtokenizer-dec", "parakeet", "kokoro", "dac", "snac", "bark"), _SPEECH),
    **dict.fromkeys(("sd1", "sd2", "sd3", "sdxl", "flux", "wan", "hunyuan_video", "ltxv", "aura", "hidream", "cosmos",
                     "lumina2", "pixart", "qwen_image"), _PICTURES),
    **dict.fromkeys(("eagle", "eagle2", "eagle3", "medusa", "dflash", "mtp"), _DRAFT)})
_DRAFT_ENDINGS = ("-assistant", "-mtp", "-eagle", "-eagle3", "-draft", "_mtp")


def check(metadata: Metadata, tensors: int | None = None) -> None:
    """UnsupportedError for a file that is not one whole model by its metadata and its number of
    tensors (None: not known yet)."""
    part = _split(metadata)
    if part is not None:
        raise UnsupportedError(f"the file is {part} of a model; supported: all of them, side by side, as "
                               "NAME-00001-of-00003.gguf and so on", hint="give each its name back and name the first; "
                               "or join them with: llama-gguf-split --merge FIRST_PART OUT.gguf")
    kind = of(metadata, tensors)
    if kind is not None:
        raise UnsupportedError(f"the file is {kind.what}; supported: a whole language model", hint=kind.hint)


def of(metadata: Metadata, tensors: int | None = None) -> GGUFKind | None:
    """The kind of a file that is not a language model; None for one that may be."""
    declared, architecture = _word(metadata, "general.type"), _word(metadata, "general.architecture")
    adapter = _word(metadata, "adapter.type")
    if declared == "adapter" and adapter not in ("", "lora"):
        return GGUFKind(f"an adapter ({_shown(adapter)}), which changes another model", _LORA.hint)
    if declared not in ("", "model"):
        return _TYPES.get(declared, GGUFKind(f"of the type {_shown(declared)}, not a model", "use the file of a model"))
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    if architecture.endswith(_DRAFT_ENDINGS):
        return _DRAFT
    if "adapter.type" in metadata or "adapter.lora.alpha" in metadata:
        return _LORA
    if any(key.startswith("imatrix.") for key in metadata):
        return _MATRIX
    if "clip.has_vision_encoder" in metadata or "clip.has_audio_encoder" in metadata:
        return _PROJECTOR
    return _VOCABULARY if tensors == 0 and "tokenizer.ggml.tokens" in metadata else None


def _split(metadata: Metadata) -> str | None:
    """Which part of a split model a file is; None for a whole one."""
    count, number = optional_int(metadata, "split.count", 1), optional_int(metadata, "split.no", -1)
    if count <= 1:
        return None
    return f"part {number + 1} of the {count} parts" if 0 <= number < count else f"one of {count} parts"


def _word(metadata: Metadata, key: str) -> str:
    value = metadata.get(key)
    return value.strip().lower() if isinstance(value, str) else ""


def _shown(text: str) -> str:
    return repr(text[:40])
