"""Where llama.cpp's vocabularies are, and small vocabularies made here."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from appliance.models.file import gguf
from appliance.text.tokenizer import Tokenizer, load
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
LLAMA_CPP = Path(os.environ.get("APPLIANCE_LLAMA_CPP", ROOT / "build" / "llama.cpp"))
BYTES = bytes(range(256))


def vocabulary_file(name: str) -> Path:
    """The file of one of llama.cpp's vocabularies; skips the test where they are not there."""
    path = LLAMA_CPP / "models" / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        absent("llama.cpp's vocabularies are missing: make vocabularies, or set APPLIANCE_LLAMA_CPP")
    return path


def template_source(name: str) -> str:
    """The text of one of llama.cpp's chat templates; skips the test where they are not there."""
    path = LLAMA_CPP / "models" / "templates" / name
    if not path.is_file():
        absent("llama.cpp's templates are missing: make vocabularies, or set APPLIANCE_LLAMA_CPP")
    return path.read_text(encoding="utf-8")


@cache
def metadata_of(name: str) -> Any:
    """The metadata of one of llama.cpp's vocabularies."""
    return gguf.parse(vocabulary_file(name).read_bytes()).metadata


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """One of llama.cpp's tokenizers."""
    return load(metadata_of(name))


def letters() -> list[str]:
    """GPT-2's letter for each byte: printable Latin-1 as itself, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + other.index(byte)) for byte in range(256)]


def byte_level(merges: tuple[str, ...] = (), pre: str = "gpt-2",
               special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"), without: bytes = b"",
               **more: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: all bytes but some, what the merges make, and control tokens."""
    known = [letter for byte, letter in enumerate(letters()) if byte not in without]
    tokens = [*known, *dict.fromkeys(merge.replace(" ", "") for merge in merges), *special]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(special)) + [3] * len(special), **more}


def sentencepiece(words: dict[str, float], **more: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece-style vocabulary: unknown, begin, end, all bytes, and words with scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in BYTES), *words]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(words.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words), **more}
