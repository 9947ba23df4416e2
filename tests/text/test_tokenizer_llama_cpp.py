"""The tokenizers against llama.cpp: its own test pairs, and what it answered for hard texts (goldens)."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from appliance.models.file import gguf
from appliance.text.tokenizer import Tokenizer, load
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support.environment import untraced
from tests.support.texts import TEXTS, around
from tests.support.vocabularies import metadata_of, tokenizer_of, vocabulary_file

GOLDENS = Path(__file__).parents[1] / "goldens" / "tokenizer"
DEMO = Path(__file__).parents[2] / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = ["llama-spm", "llama-bpe", "gpt-2", "phi-3", "qwen2", "falcon", "mpt", "starcoder", "refact", "deepseek-llm",
         "deepseek-coder", "command-r", "qwen35", "gemma-4"]


def _golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDENS / f"{name}.json").read_text())


def _tokenizer(name: str) -> Tokenizer:
    if name != "demo":
        return tokenizer_of(name)
    if not DEMO.is_file():
        pytest.skip("the demo model is missing: make demo")
    return load(gguf.parse(DEMO.read_bytes()).metadata)


def _digest(ids: list[int]) -> str:
    return f"{zlib.crc32(' '.join(map(str, ids)).encode()):08x}"


@pytest.mark.parametrize("name", NAMES)
def test_pairs_of_llama_cpp(name: str) -> None:
    """Every text of llama.cpp's own test files gives its tokens, and decodes to itself again."""
    path = vocabulary_file(name)
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")  # the last text may be empty, and so its line
    wanted = [[int(token) for token in line.split()] for line in lines[:len(texts)]]
    assert not "".join(lines[len(texts):])
    assert 40 < len(wanted)
    tokenizer = tokenizer_of(name)
    for text, ids in zip(texts, wanted, strict=True):
        assert ids == tokenizer.encode(text)
        assert text == tokenizer.decode(ids)


@pytest.mark.parametrize("name", [*NAMES, "demo"])
def test_hard_texts(name: str) -> None:
    """Hard texts give llama.cpp's tokens: plain, with special tokens parsed, and with bos and eos added."""
    tokenizer, golden = _tokenizer(name), _golden(name)
    for text, plain, parsed in zip(TEXTS, golden["plain"], golden["parsed"], strict=True):
        assert plain == " ".join(map(str, tokenizer.encode(text))), ascii(text)
        assert parsed == _digest(tokenizer.encode(text, add_special=True, parse_special=True)), ascii(text)


@pytest.mark.parametrize("name", [*NAMES, "demo"])
def test_special_tokens(name: str) -> None:
    """Texts around a vocabulary's own special tokens give llama.cpp's tokens; so do the ids that end an answer."""
    tokenizer, golden = _tokenizer(name), _golden(name)
    for text, wanted in golden["own"].items():
        found = [tokenizer.encode(text, parse_special=parse) for parse in (False, True)]
        assert wanted == [" ".join(map(str, ids)) for ids in found], ascii(text)
    assert golden["eog"] == sorted(tokenizer.eot_ids)
    assert (golden["bos"], golden["eos"], golden["add_bos"]) == (tokenizer.bos, tokenizer.eos, tokenizer.add_bos)


@pytest.mark.parametrize("name", [*NAMES, "demo"])
def test_decoding(name: str) -> None:
    """Tokens from all over a vocabulary decode to llama.cpp's text; where that removes spaces before punctuation, ours
    stay: a text comes back as it was."""
    tokenizer, golden = _tokenizer(name), _golden(name)
    ids = range(7, tokenizer.vocab_size, tokenizer.vocab_size // 200)
    # Tokens written with characters outside the byte alphabet: their text, where llama.cpp writes [UNK_BYTE_0x...].
    wanted = re.sub(r"\[UNK_BYTE_0x[0-9a-f]+([^\]]*)\]", r"\1", golden["decoded"])
    found = tokenizer.decode(ids)
    cleaned = re.sub(" (?=[?!.,])", "", found).replace(" ' ", "'")
    assert wanted in (found, re.sub(" (?='(?:[sm]|re|ve))", "", cleaned))


@pytest.mark.slow
@untraced()
def test_every_pre_tokenizer() -> None:
    """Under every name of a pre-tokenizer, hard texts are cut as llama.cpp cuts them."""
    metadata, golden = metadata_of("deepseek-coder"), _golden("pre-tokenizers")
    assert set(PRE_TOKENIZERS) - {""} == set(golden)
    done: dict[object, str] = {}
    for name, wanted in golden.items():
        pre = PRE_TOKENIZERS[name]
        if pre not in done:
            tokenizer = load({**metadata, "tokenizer.ggml.pre": name})
            done[pre] = "".join(_digest(tokenizer.encode(text, add_special=True))[-4:] for text in TEXTS)
        assert wanted == done[pre], name


def test_user_text_never_gives_a_control_token() -> None:
    """However a text looks, without parsing it gives no control token, in any vocabulary."""
    for name in NAMES:
        tokenizer = tokenizer_of(name)
        special = [tokenizer.token_text(token) for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
        for text in around(special[:40]):
            assert not any(tokenizer.is_special(token) for token in tokenizer.encode(text)), (name, text)
