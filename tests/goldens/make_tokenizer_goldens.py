"""Write tests/goldens/tokenizer/*.json: what llama.cpp's tokenizers make of hard texts.

    python tests/goldens/make_tokenizer_goldens.py LLAMA_CPP DEMO_MODEL.gguf

LLAMA_CPP is a folder with llama.cpp's models/ggml-vocab-*.gguf (tests/support/fetch_llama_vocab.py makes one). Needs
the package llama_cpp (0.3.36), which the project itself does not use.

    <vocabulary>.json   ids of each of tests/support/texts.py, plain and with control tokens parsed and added; ids of
                        texts around the vocabulary's own special tokens; end-of-generation ids; texts decoded again
    pre-tokenizers.json for each pre-tokenizer's name, four digits of a digest of the ids of each text, with the
                        vocabulary deepseek-coder and only the name in its metadata changed
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import llama_cpp

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.texts import TEXTS, around

TARGET = Path(__file__).parent / "tokenizer"
VOCABULARIES = ("llama-spm", "llama-bpe", "gpt-2", "phi-3", "qwen2", "falcon", "mpt", "starcoder", "refact",
                "deepseek-llm", "deepseek-coder", "command-r", "qwen35", "gemma-4")
PRE_BASE = "deepseek-coder"
SPECIAL = 2 | 8 | 16  # LLAMA_TOKEN_ATTR: unknown, control, user-defined
PRE_TOKENIZERS = [
    "default", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5", "jais-2", "deepseek-llm",
    "deepseek-coder", "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4", "spark2_5", "youtu", "falcon",
    "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2", "command-r", "smollm", "gpt-2",
    "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert",
    "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "exaone4", "trillion",
    "granite-docling", "stablelm2", "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open",
    "grok-2", "megrez", "qwen35", "exaone-moe", "bloom", "gpt3-finnish", "poro-chat", "viking", "tekken", "chameleon",
    "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m", "tiny_aya", "cohere2moe",
    "superbpe", "bailingmoe", "bailingmoe2", "llada-moe", "seed-coder", "kimi-k2", "ufakzeka", "afmoe",
    "laguna", "minicpm5", "gemma4", "granite-embed-multi-311m", "sarvam-moe",
]


class Peer:
    """A vocabulary as llama.cpp reads it."""

    def __init__(self, path: Path) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self._ids = (llama_cpp.llama_token * 100_000)()
        self._text = ctypes.create_string_buffer(1_000_000)

    def encode(self, text: str, add: bool, parse: bool) -> list[int]:
        """Ids of a text."""
        data = text.encode()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), self._ids, len(self._ids), add, parse)
        return list(self._ids[:count])

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens written out, spaces cleaned up where the vocabulary wants it."""
        array = (llama_cpp.llama_token * max(1, len(ids)))(*ids)
        size = llama_cpp.llama_detokenize(self.vocab, array, len(ids), self._text, len(self._text), False, True)
        return self._text.raw[:size].decode("utf-8", "replace")

    def special(self) -> list[str]:
        """The texts of special tokens: the first and last few."""
        found = [llama_cpp.llama_vocab_get_text(self.vocab, token).decode() for token in range(self.size)
                 if llama_cpp.llama_vocab_get_attr(self.vocab, token) & SPECIAL]
        return [text for text in dict.fromkeys([*found[:6], *found[-6:]]) if text]

    def golden(self) -> dict:
        """Everything that is kept of this vocabulary."""
        own = around(self.special())
        numbers = range(7, self.size, self.size // 200)
        return {
            "eog": [token for token in range(self.size) if llama_cpp.llama_vocab_is_eog(self.vocab, token)],
            "bos": llama_cpp.llama_vocab_bos(self.vocab), "eos": llama_cpp.llama_vocab_eos(self.vocab),
            "add_bos": llama_cpp.llama_vocab_get_add_bos(self.vocab),
            "plain": [packed(self.encode(text, False, False)) for text in TEXTS],
            "parsed": [digest(self.encode(text, True, True)) for text in TEXTS],
            "own": {text: [packed(self.encode(text, False, parse)) for parse in (False, True)] for text in own},
            "decoded": self.decode(list(numbers)),
        }


def packed(ids: list[int]) -> str:
    """Ids in a short form."""
    return " ".join(map(str, ids))


def digest(ids: list[int]) -> str:
    """Eight hexadecimal digits for a list of ids."""
    return f"{zlib.crc32(packed(ids).encode()):08x}"


def with_pre(data: bytes, name: str) -> bytes:
    """A GGUF file without tensors, `tokenizer.ggml.pre` changed."""
    key = b"tokenizer.ggml.pre"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    size = struct.unpack_from("<Q", data, at)[0]
    return data[:at] + struct.pack("<Q", len(name)) + name.encode() + data[at + 8 + size:]


def write(name: str, content: dict) -> None:
    """One golden file."""
    TARGET.mkdir(exist_ok=True)
    (TARGET / f"{name}.json").write_text(json.dumps(content, ensure_ascii=True, indent=0) + "\n")


def main() -> None:
    """Ask llama.cpp about everything."""
    models = Path(sys.argv[1]) / "models"
    for name in VOCABULARIES:
        write(name, Peer(models / f"ggml-vocab-{name}.gguf").golden())
    write("demo", Peer(Path(sys.argv[2])).golden())
    data, found = (models / f"ggml-vocab-{PRE_BASE}.gguf").read_bytes(), {}
    for name in PRE_TOKENIZERS:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(with_pre(data, name))
            file.flush()
            peer = Peer(Path(file.name))
            found[name] = "".join(digest(peer.encode(text, True, False))[-4:] for text in TEXTS)
            llama_cpp.llama_model_free(peer.model)
    write("pre-tokenizers", found)


if __name__ == "__main__":
    main()
