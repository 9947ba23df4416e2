"""Fuzz the tokenizers: a vocabulary, merges and a text from the same bytes."""

from __future__ import annotations

from typing import Any

from appliance.errors import ApplianceError, TokenizerError
from appliance.text.tokenizer import TextStream, load
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support.texts import HARD
from tests.support.vocabularies import byte_level, letters, sentencepiece

_NAMES = sorted(PRE_TOKENIZERS)
_READY = [load(byte_level(("a b", "ab c", "Ġ a", "Ġ Ġ", "e e", "Ã ©"), pre)) for pre in _NAMES[::6]
          if PRE_TOKENIZERS[pre].byte_level]  # of characters alone, a text without tokens for them is lost
_READY.append(load(sentencepiece({"▁": -1.0, "a": -2.0, "ab": -0.5, "▁a": -0.4, "▁▁": -0.3})))


def _metadata(parts: list[bytes]) -> dict[str, Any]:
    """A vocabulary that is odd in every way, from the parts of the input."""
    first = parts[0] or b"\x00"
    words = parts[1].split(b",")
    tokens: list[Any] = [*letters(), *words] if first[0] & 1 else [word.decode("latin-1") for word in words]
    return {
        "tokenizer.ggml.model": ["gpt2", "llama", "gemma4", "bert"][first[0] >> 1 & 3],
        "tokenizer.ggml.pre": _NAMES[first[-1] % len(_NAMES)], "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [word.replace(b"+", b" ") for word in parts[2].split(b",")],
        "tokenizer.ggml.scores": [float(byte) - 128 for byte in parts[2] * 50][:len(tokens) + first[0] % 3],
        "tokenizer.ggml.token_type": [byte % 8 for byte in (parts[3] or b"\x01") * len(tokens)][:len(tokens)],
        "tokenizer.ggml.eos_token_id": first[-1], "tokenizer.ggml.bos_token_id": len(first),
        "tokenizer.ggml.add_bos_token": bool(first[0] & 8), "general.name": "phi-3" if first[0] & 16 else "x"}


def fuzz(data: bytes) -> None:
    """Ready tokenizers must give any text back; a made-up vocabulary is refused, or encodes and decodes."""
    text = data.decode("utf-8", "replace")
    for tokenizer in _READY:
        if (found := tokenizer.decode(tokenizer.encode(text))) not in (text, text.replace("\u2581", " ")):
            raise AssertionError(f"a text of {len(text)} characters came back with {len(found)}")
        tokenizer.encode(text, add_special=True, parse_special=True, untrusted=[(0, len(text) // 2)])
    parts = (data.split(b"|") + [b""] * 5)[:5]
    try:
        tokenizer = load(_metadata(parts))
        ids = tokenizer.encode(parts[4].decode("utf-8", "surrogateescape"), parse_special=True, add_special=True)
        tokenizer.decode(ids)
        stream = TextStream(tokenizer)
        "".join(map(stream.push, ids))
        stream.finish()
    except (TokenizerError, ApplianceError):
        return


def seeds() -> list[bytes]:
    """Hard texts, and vocabularies in the form that `fuzz` takes apart."""
    vocabularies = [
        b"\x01|ab,abc,<s>,</s>|a+b,ab+c|\x01\x01\x03|abcab <s>", b"\x02|a,b,ab,<unk>|xyz|\x01\x02\x06|ab<unk>",
        b"\x05|\xe2\x96\x81,a,\n\n,<0x0A>|a+b|\x01\x04|a  b\n\n", b"\x19|</s>,<unk>,<s>,<|endoftext|>|a+b|\x03| </s> x"]
    return [text.encode() for text in HARD] + vocabularies
