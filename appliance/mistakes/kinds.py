"""The kinds of GGUF files beside a model that answers by itself, by `general.type`, the
architecture and a few keys; files of before `general.type` by the architecture alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from appliance.codec.filekind import FileKind

_LORA = FileKind("a LoRA adapter, which changes another model",
                 "merge it into its model with llama.cpp's llama-export-lora, and use the result")
_PROJECTOR = FileKind("a projector (mmproj), which gives another model pictures or sound",
                      "use the file of the language model beside it; pictures and sound are not taken here")
_VECTOR = FileKind("a control vector, which steers another model", "use the file of the model itself")
_MATRIX = FileKind("an importance matrix (imatrix), which is for quantising a model",
                   "use the file of the model itself")
_VOCABULARY = FileKind("a vocabulary without weights", "use a file of the whole model; `appliance tokenize` takes this")
_ENCODER = FileKind("a model that makes embeddings or rankings and writes no text", "use a model that generates text")
_SPEECH = FileKind("a model for speech or sound, which writes no text here", "use a language model")
_PICTURES = FileKind("a model that makes pictures", "use a language model")
_DRAFT = FileKind("a draft head, which guesses the tokens of another model and cannot run alone",
                  "use the file of the model itself; draft_model takes a small whole model of the same vocabulary")

_TYPES: Mapping[str, FileKind] = MappingProxyType({
    "adapter": _LORA, "lora": _LORA, "mmproj": _PROJECTOR, "projector": _PROJECTOR, "clip-vision": _PROJECTOR,
    "imatrix": _MATRIX, "controlvector": _VECTOR, "vocab": _VOCABULARY})
_ARCHITECTURES: Mapping[str, FileKind] = MappingProxyType({
    **dict.fromkeys(("clip", "mmproj", "siglip"), _PROJECTOR), "controlvector": _VECTOR, "imatrix": _MATRIX,
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
                     "eurobert", "t5encoder", "gemma-embedding", "llama-embed", "xlm-roberta"), _ENCODER),
    **dict.fromkeys(("whisper", "wavtokenizer-dec", "parakeet", "kokoro", "dac", "snac", "bark"), _SPEECH),
    **dict.fromkeys(("sd1", "sd2", "sd3", "sdxl", "flux", "wan", "hunyuan_video", "ltxv", "aura", "hidream", "cosmos",
                     "lumina2", "pixart", "qwen_image"), _PICTURES),
    **dict.fromkeys(("eagle", "eagle2", "eagle3", "medusa", "dflash", "mtp"), _DRAFT)})
_DRAFT_ENDINGS = ("-assistant", "-mtp", "-eagle", "-eagle3", "-draft", "_mtp")


def of(metadata: Mapping[str, Any], tensors: int | None = None) -> FileKind | None:
    """The kind of a file that is not a language model; None for one that may be."""
    declared, architecture = _word(metadata, "general.type"), _word(metadata, "general.architecture")
    adapter = _word(metadata, "adapter.type")
    if declared == "adapter" and adapter not in ("", "lora"):
        return FileKind(f"an adapter ({adapter[:40]!r}), which changes another model", _LORA.use)
    if declared not in ("", "model"):
        return _TYPES.get(declared)
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


def _word(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    return value.strip().lower() if isinstance(value, str) else ""
