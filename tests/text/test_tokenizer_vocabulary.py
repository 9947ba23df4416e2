"""Vocabularies: what metadata must have, what hostile metadata is told, special ids and what ends an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from appliance.boot.planning.inspection import pre_tokenizer_used
from appliance.errors import ApplianceError, TokenizerError, UnsupportedError
from appliance.text.tokenizer import load
from tests.support.vocabularies import byte_level, sentencepiece

WORDS = {"▁": -1.0, "a": -2.0, "b": -3.0, "▁a": -0.5}
SPM = sentencepiece(WORDS)
BPE = byte_level(("a b", "ab c"))

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no model": (BPE, {"model": None}, "tokenizer.ggml.model' is missing"),
    "another model": (BPE, {"model": "bert"}, "'bert' does not run here"),
    "model of another type": (BPE, {"model": 7}, "is a number"),
    "unknown pre-tokenizer": (BPE, {"pre": "brand-new"}, "'brand-new' is not known"),
    "pre-tokenizer of another type": (BPE, {"pre": ["gpt-2"]}, "is an array"),
    "no tokens": (BPE, {"tokens": None}, "'tokenizer.ggml.tokens' is missing"),
    "empty tokens": (BPE, {"tokens": []}, "at least one token"),
    "tokens no array": (BPE, {"tokens": "abc"}, "is a text"),
    "tokens no strings": (BPE, {"tokens": ["a", 3]}, "something else than strings"),
    "duplicate tokens": (BPE, {"tokens": [*BPE["tokenizer.ggml.tokens"], "a"]}, "are the same"),
    "overlong token": (BPE, {"tokens": ["a" * 70000]}, "at most 65536 characters"),
    "no merges": (BPE, {"merges": None}, "'tokenizer.ggml.merges' is missing"),
    "merges no strings": (BPE, {"merges": [1, 2]}, "something else than strings"),
    "too few types": (BPE, {"token_type": [1, 1]}, "an array of 2 whole numbers"),
    "types no numbers": (BPE, {"token_type": ["1"] * 300}, "an array of"),
    "types not whole": (BPE, {"token_type": [1.5] * 300}, "not whole"),
    "types no array": (BPE, {"token_type": 3}, "is a number"),
    "too few scores": (SPM, {"scores": [1.0]}, "an array of 1 numbers"),
    "scores not numbers": (SPM, {"scores": [float("nan")] * 300}, "NaN"),
    "scores nested": (SPM, {"scores": [[1.0]] * 300}, "an array of 300"),
    "bos beyond": (BPE, {"bos_token_id": 999}, "is 999; allowed: 0 to 259"),
    "eos negative": (BPE, {"eos_token_id": -5}, "is -5"),
    "eos no number": (BPE, {"eos_token_id": "2"}, "is a text"),
    "eot beyond": (BPE, {"eot_token_id": 1 << 40}, "allowed: 0 to 259"),
    "add_bos no boolean": (BPE, {"add_bos_token": 1}, "is a number"),
    "add_bos without bos": (BPE, {"add_bos_token": True, "bos_token_id": 0xFFFFFFFF}, "names none"),
    "add_eos without eos": (SPM, {"add_eos_token": True, "eos_token_id": 0xFFFFFFFF}, "names none"),
    "space prefix no boolean": (SPM, {"add_space_prefix": "yes"}, "is a text"),
    "suppressed tokens no array": (BPE, {"suppress_tokens": 5}, "is a number"),
    "suppressed tokens beyond": (BPE, {"suppress_tokens": [3, 260]}, "ids in 0 to 259"),
    "suppressed tokens not whole": (BPE, {"suppress_tokens": [0.5]}, "something else than token ids"),
    "all tokens suppressed": (BPE, {"suppress_tokens": list(range(260))}, "all tokens"),
}


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """Malformed metadata is refused with an error that names the key and what was found."""
    metadata, changes, wanted = REFUSED[name]
    with pytest.raises((TokenizerError, UnsupportedError)) as caught:
        load(_changed(metadata, changes))
    assert wanted in str(caught.value)


def test_refusals_bound_what_they_quote() -> None:
    """A long name in a file is cut in the error."""
    with pytest.raises(ApplianceError) as caught:
        load(_changed(BPE, {"pre": "x" * 100_000}))
    assert len(str(caught.value)) < 2000


def test_bytes_tokens_without_byte_tokens() -> None:
    """A SentencePiece-style vocabulary needs its byte tokens, or an unknown token in their place."""
    words = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
             "tokenizer.ggml.token_type": [2, 3, 3, 1]}
    tokenizer = load({**words, "tokenizer.ggml.add_space_prefix": False})
    assert [3, 0] == tokenizer.encode("ab")
    with pytest.raises(TokenizerError, match="neither a token for byte 0 nor an unknown token"):
        load({**words, "tokenizer.ggml.unknown_token_id": 0xFFFFFFFF})


def test_odd_merges() -> None:
    """Merges of unknown tokens, without a space, doubled or empty do no harm: the first of equals counts."""
    merges = ("", "ab", " ", "a  b", "x y", "a b", "b c", "a b", "ab c", "zz zz", "\x00 \x00")
    tokens = [*byte_level()["tokenizer.ggml.tokens"][:256], "ab", "bc", "abc"]
    tokenizer = load(_changed(BPE, {"merges": list(merges), "tokens": tokens, "token_type": None}))
    assert ["abc", "x", "y"] == [tokenizer.token_text(token) for token in tokenizer.encode("abcxy")]


def test_tokens_as_bytes_and_arrays() -> None:
    """Tokens may come as bytes, valid UTF-8 or not, and numbers as numpy arrays."""
    tokens = [token.encode() for token in SPM["tokenizer.ggml.tokens"]]
    changes = {"tokens": [*tokens, b"\xff\xfe"], "scores": np.zeros(264, np.float32),
               "token_type": np.array([*SPM["tokenizer.ggml.token_type"], 1], np.int32)}
    tokenizer = load(_changed(SPM, changes))
    assert b"\xff\xfe" == tokenizer.piece(263)
    assert "\ufffd\ufffd" == tokenizer.decode([263])


def test_ids_beyond_the_vocabulary() -> None:
    """An id that is not in the vocabulary is refused when decoding."""
    tokenizer = load(BPE)
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match="not in the vocabulary"):
            tokenizer.decode([token])


def test_defaults() -> None:
    """Without keys, SentencePiece adds 1 and ends at 2; byte-level models add nothing."""
    spm, bpe = load(SPM), load(BPE)
    assert (1, 2, True, False) == (spm.bos, spm.eos, spm.add_bos, spm.add_eos)
    assert (11, 11, False, False) == (bpe.bos, bpe.eos, bpe.add_bos, bpe.add_eos)
    assert [1, 262] == spm.encode("a", add_special=True)
    both = load(_changed(SPM, {"add_eos_token": True}))
    assert [1, 262, 2] == both.encode("a", add_special=True)


ENDS = [
    ("named", {"eos_token_id": 0}, (), {"0"}),
    ("by text", {"eos_token_id": 0}, ("<|im_end|>", "<|endoftext|>", "</s>"),
     {"0", "<|im_end|>", "<|endoftext|>", "</s>"}),
    ("gemma", {"eos_token_id": 0}, ("<end_of_turn>", "<eos>"), {"0", "<end_of_turn>", "<eos>"}),
    ("fill in the middle", {"eos_token_id": 0}, ("<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>"),
     {"0", "<|fim_pad|>", "<|file_sep|>"}),
    ("harmony", {"eos_token_id": 0}, ("<|return|>", "<|call|>", "<|end|>"), {"0", "<|return|>", "<|call|>"}),
    ("phi", {"eos_token_id": 0}, ("<|end|>",), {"0", "<|end|>"}),
    ("tool response", {"eos_token_id": 0}, ("<|tool_response>", "</s>"), {"0", "<|tool_response>"}),
    ("eot by key", {"eos_token_id": 0, "eot_token_id": 1}, (), {"0", "1"}),
]


@pytest.mark.parametrize(("name", "keys", "special", "wanted"), ENDS, ids=[case[0] for case in ENDS])
def test_what_ends_an_answer(name: str, keys: dict[str, int], special: tuple[str, ...], wanted: set[str]) -> None:
    """The end of an answer is known by key and by text, as llama.cpp knows it."""
    tokenizer = load(_changed(byte_level(special=special), keys))
    found = {str(token) if token < 256 else tokenizer.token_text(token) for token in tokenizer.eot_ids}
    assert wanted == found


def test_phi3_strips_space_after_special_tokens() -> None:
    """In a model called Phi-3, special tokens but <s>, <unk> and <|endoftext|> swallow the space after them."""
    special = ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|end|>")
    metadata = {**byte_level(special=special), "general.name": "Phi-3 mini"}
    tokenizer = load(metadata)
    number = metadata["tokenizer.ggml.tokens"].index
    assert [number("<|end|>"), number("a")] == tokenizer.encode("<|end|> \n a", parse_special=True)
    assert [number("<s>"), number("Ġ"), number("a")] == tokenizer.encode("<s> a", parse_special=True)
    with pytest.raises(TokenizerError, match="lacks '</s>'"):
        load({**byte_level(), "general.name": "phi3"})


def test_longest_special_token_first() -> None:
    """Of special tokens that overlap, the longest is read, wherever it begins."""
    tokenizer = load(byte_level(special=("<ab>", "b><cde>", "<cde>")))
    assert ["<", "a", "b><cde>"] == [tokenizer.token_text(token)
                                     for token in tokenizer.encode("<ab><cde>", parse_special=True)]


def test_text_cannot_merge_into_a_control_token() -> None:
    """Where merges or scores would make a control token of plain text, they do not."""
    merges = ("< e", "<e o", "<eo s", "<eos >")
    tokens = [*byte_level()["tokenizer.ggml.tokens"][:256], "<e", "<eo", "<eos", "<eos>"]
    kinds = [1] * 259 + [3]
    metadata = _changed(BPE, {"tokens": tokens, "merges": list(merges), "token_type": kinds, "pre": "bloom"})
    tokenizer = load(metadata)
    assert [258, tokens.index(">")] == tokenizer.encode("<eos>")
    assert [259] == tokenizer.encode("<eos>", parse_special=True)
    spm = load(sentencepiece({"<": -1.0, "/": -1.0, "s": -1.0, ">": -1.0, "</": 5.0, "s>": 5.0},
                             **{"tokenizer.ggml.add_space_prefix": False}))
    assert ["</", "s>"] == [spm.token_text(token) for token in spm.encode("</s>")]
    assert [2] == spm.encode("</s>", parse_special=True)


NONE = {"u32": 0xFFFFFFFF, "u64": 0xFFFFFFFFFFFFFFFF, "signed": -1}


@pytest.mark.parametrize("none", NONE.values(), ids=list(NONE))
@pytest.mark.parametrize("metadata", [SPM, byte_level(pre="llama-bpe"), byte_level(pre="tekken")])
def test_a_file_that_says_that_there_is_no_bos(metadata: dict[str, Any], none: int) -> None:
    """Where bos is none, nothing is added by default; other ids may be none, too."""
    ids = {f"tokenizer.ggml.{name}_token_id": none for name in ("bos", "unknown", "padding", "eot", "fim_pre")}
    words = load({**metadata, **ids})
    assert (None, False) == (words.bos, words.add_bos)
    assert words.encode("a") == words.encode("a", add_special=True)
    assert load({**metadata, "tokenizer.ggml.eos_token_id": none}).eos is None


def test_a_missing_pre_tokenizer_is_a_warning() -> None:
    """Texts are cut by the default, as llama.cpp does it, and it is said; a name is no warning, `default` included."""
    missing = {key: value for key, value in BPE.items() if key != "tokenizer.ggml.pre"}
    for metadata in (missing, {**BPE, "tokenizer.ggml.pre": ""}):
        [warning] = load(metadata).warnings
        assert "names no pre-tokenizer (tokenizer.ggml.pre): 'default' is used" in warning
        assert "default" == pre_tokenizer_used(metadata)
        text = "I'm 123 ok!\n"
        assert load({**BPE, "tokenizer.ggml.pre": "default"}).encode(text) == load(metadata).encode(text)
    for metadata in (BPE, {**BPE, "tokenizer.ggml.pre": "default"}, SPM):
        assert () == load(metadata).warnings
    assert ("gpt-2", None) == (pre_tokenizer_used(BPE), pre_tokenizer_used(SPM))


def test_a_text_that_brings_its_own_bos() -> None:
    """Where the beginning of a text is added and the text has it, it is there twice: a warning, as of llama.cpp."""
    words = load({**SPM, "tokenizer.ggml.add_eos_token": True})
    for text, count in (("a", 0), ("<s>a", 1), (" <s>a", 0), ("a</s>", 1), ("<s>a</s>", 2), ("a<s>", 0), ("", 0)):
        assert count == len(words.doubled(words.encode(text, add_special=True, parse_special=True))), text
    assert [] == words.doubled(words.encode("<s>a", add_special=True))
    [said] = words.doubled([1, 1, 5])
    assert "the prompt begins with '<s>', which is added anyway, so that it is there twice" in said
    assert [] == load({**SPM, "tokenizer.ggml.add_bos_token": False}).doubled([1, 1])
