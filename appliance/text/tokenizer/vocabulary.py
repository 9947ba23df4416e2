"""A vocabulary as GGUF metadata has it: tokens, their kinds and scores, special ids,
end-of-generation ids.

Keys: `docs/gguf.md` of ggml. Where files leave things out, llama.cpp's defaults hold
(src/llama-vocab.cpp), since files are made for it. Faults that it repairs silently in hostile files
are refused here: duplicate tokens, scores or types that do not fit, special ids beyond the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from appliance.errors import TokenizerError, UnsupportedError
from appliance.text.tokenizer.pretokenizers import GEMMA4, PRE_TOKENIZERS, PreTokenizer

PREFIX = "tokenizer.ggml."
DEFAULT_PRE = "default"  # the pre-tokenizer of a byte-level model that names none, as llama.cpp has it
MAX_TOKENS = 1 << 22
MAX_TOKEN_LENGTH = 1 << 16  # characters; real ones are below 1024
_KIND_OF = {"i": "whole numbers", "u": "whole numbers", "f": "numbers"}  # by the letter of numpy's types
NO_TOKENS = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, -1)  # what files say for "there is none", by the type of the key


class TokenKind(IntEnum):
    """The kinds of token, as bits: a token may be of several kinds."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 4
    USER_DEFINED = 8
    UNUSED = 16
    BYTE = 32
    STRIP_RIGHT = 64  # white space after it goes when it is parsed


SPECIAL = TokenKind.CONTROL | TokenKind.UNKNOWN  # never made from a user's text

# GGUF's token types 0 to 6, any other number is as 0 (undefined)
_KINDS = bytes([0, TokenKind.NORMAL, TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNUSED,
                TokenKind.BYTE])

# Tokens known by their text, where a file does not name them: (key, texts)
_KNOWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("eot", ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
             "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>")),
    ("eom", ("<|eom_id|>",)),
    ("fim_pre", ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                 "<|code_prefix|>", "<|prefix|>")),
    ("fim_suf", ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                 "<|code_suffix|>", "<|suffix|>")),
    ("fim_mid", ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                 "<|code_middle|>", "<|middle|>")),
    ("fim_pad", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    ("fim_rep", ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    ("fim_sep", ("<|file_sep|>",)),
)
_END_OF_GENERATION = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # of gpt-oss: part of what it answers
_STRIPPING_PHI3 = ("phi-3", "phi3")
# name -> the key below "tokenizer.ggml.", and the deprecated key that overrides it
_ID_KEYS = {
    "bos": ("bos_token_id",), "eos": ("eos_token_id",), "eot": ("eot_token_id",), "eom": ("eom_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"), "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"), "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",), "fim_sep": ("fim_sep_token_id",), "unk": ("unknown_token_id",),
}


@dataclass(slots=True)
class Vocabulary:
    """Tokens by id and by text, and everything the file says about them."""

    model: str  # "llama" or "gpt2" or "gemma4"
    pre: PreTokenizer
    texts: list[str]
    ids: dict[str, int]
    kinds: bytearray  # Kind of each token
    scores: Sequence[float]  # of each token; empty for byte-level models
    special: dict[str, int] = field(default_factory=dict)  # "bos", "eos", "eot", ... -> id
    eog_ids: frozenset[int] = frozenset()
    suppressed: frozenset[int] = frozenset()  # that are never chosen
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    warnings: list[str] = field(default_factory=list)  # what in the metadata was replaced by a default

    @property
    def is_sentencepiece(self) -> bool:
        """Scores instead of merges."""
        return self.model == "llama"


def read(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a model. UnsupportedError names a tokenizer or pre-tokenizer that does not
    run here; TokenizerError says what in the metadata is wrong."""
    model = _text(metadata, "model", None)
    pre = _pre_tokenizer(model, _text(metadata, "pre", ""))
    texts, ids = _tokens(metadata)
    kinds = _token_kinds(metadata, len(texts))
    scores = _scores(metadata, len(texts)) if model == "llama" else []
    vocabulary = Vocabulary(model, pre, texts, ids, kinds, scores)
    sentencepiece = vocabulary.is_sentencepiece
    vocabulary.add_space_prefix = _flag(metadata, "add_space_prefix", sentencepiece)
    vocabulary.special = _special_ids(metadata, vocabulary)
    vocabulary.suppressed = _suppressed(metadata, len(texts))
    vocabulary.add_bos = _adds(metadata, vocabulary, "bos", sentencepiece or pre.add_bos)
    vocabulary.add_eos = _adds(metadata, vocabulary, "eos", False)
    if model == "gpt2" and not metadata.get(PREFIX + "pre"):
        vocabulary.warnings.append(
            f"the file names no pre-tokenizer ({PREFIX}pre): {DEFAULT_PRE!r} is used, which may cut texts in other "
            "words than the model knows; convert the model again with a current llama.cpp")
    _know_by_text(vocabulary)
    _find_end_of_generation(vocabulary)
    _set_stripping(vocabulary, metadata.get("general.name"))
    return vocabulary


def _adds(metadata: Mapping[str, Any], vocabulary: Vocabulary, name: str, default: bool) -> bool:
    """Whether a token ("bos" or "eos") is added to texts. Nothing is added by default where the
    file says that there is no such token; TokenizerError where the file itself asks for it."""
    key = f"add_{name}_token"
    asked = (name == "bos" and vocabulary.pre.forced_bos) or _flag(metadata, key, default)
    if not asked or name in vocabulary.special:
        return asked
    if PREFIX + key in metadata or metadata.get(PREFIX + _ID_KEYS[name][0]) not in NO_TOKENS:
        raise TokenizerError(f"metadata asks to add the {name} token to texts, but names none",
                             hint=f"set {PREFIX}{key} to false, or {PREFIX}{_ID_KEYS[name][0]} to the token")
    return False


def _kind(value: object) -> str:
    """The kind of a value, for a message."""
    if value is None:
        return "missing"
    if isinstance(value, bool | np.bool_):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str | bytes) else "an array"


def _wrong(key: str, found: str, allowed: str) -> TokenizerError:
    return TokenizerError(f"metadata key {PREFIX + key!r} is {found}; allowed: {allowed}",
                          hint="convert the model again with a current llama.cpp")


def _text(metadata: Mapping[str, Any], key: str, default: str | None) -> str:
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, str):
        raise _wrong(key, _kind(value), "a string")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, bool | np.bool_):
        raise _wrong(key, _kind(value), "a boolean")
    return bool(value)


def _pre_tokenizer(model: str, name: str) -> PreTokenizer:
    """The pre-tokenizer of a byte-level model; a missing name is llama.cpp's default, an unknown
    one is refused."""
    if model == "llama":
        return PRE_TOKENIZERS["default"]
    if model == "gemma4":
        return GEMMA4
    if model != "gpt2":
        raise UnsupportedError(f"tokenizer model {model[:40]!r} does not run here; supported: llama, gpt2, gemma4")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(f"pre-tokenizer {name[:40]!r} is not known here; known: "
                               + ", ".join(sorted(known for known in PRE_TOKENIZERS if known)))
    return PRE_TOKENIZERS[name]


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[str], dict[str, int]]:
    """All tokens, and the id of each; an empty token gets a name as llama.cpp gives it."""
    texts = strings(metadata, "tokens", MAX_TOKENS)
    if not texts:
        raise _wrong("tokens", "empty", "at least one token")
    if max(map(len, texts)) > MAX_TOKEN_LENGTH:
        raise _wrong("tokens", "an array with an overlong token", f"at most {MAX_TOKEN_LENGTH} characters each")
    if "" in texts:
        texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        first = next(index for index, text in enumerate(texts) if ids[text] != index)
        raise _wrong("tokens", f"an array where tokens {first} and {ids[texts[first]]} are the same", "each token once")
    return texts, ids


def strings(metadata: Mapping[str, Any], key: str, limit: int) -> list[str]:
    """An array of strings; bytes are read as UTF-8, what is not valid in them as lone surrogates.
    """
    value = metadata.get(PREFIX + key)
    if value is None or isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _wrong(key, _kind(value), "an array of strings")
    if len(value) > limit:
        raise _wrong(key, f"an array of {len(value)}", f"at most {limit}")
    items = [item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in value]
    if not all(isinstance(item, str) for item in items):
        raise _wrong(key, "an array with something else than strings", "an array of strings")
    return items


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray[Any, Any]:
    """An array of at least `count` numbers, cut to `count`."""
    value = metadata[PREFIX + key]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        raise _wrong(key, _kind(value), f"an array of {count} numbers")
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < count:
        kind = _KIND_OF.get(array.dtype.kind, "other values")
        raise _wrong(key, f"an array of {len(value)} {kind}", f"an array of {count} numbers")
    return array[:count]


def _token_kinds(metadata: Mapping[str, Any], count: int) -> bytearray:
    if metadata.get(PREFIX + "token_type") is None:
        return bytearray([TokenKind.NORMAL]) * count
    types = _numbers(metadata, "token_type", count)
    if types.dtype.kind == "f":
        raise _wrong("token_type", "an array of numbers that are not whole", "integers")
    known = np.where((types >= 0) & (types < len(_KINDS)), types, 0)
    return bytearray(np.frombuffer(_KINDS, np.uint8)[known].tobytes())


def _scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    """The score of each token as float32; without scores all are equal."""
    if metadata.get(PREFIX + "scores") is None:
        return [0.0] * count
    scores = _numbers(metadata, "scores", count).astype(np.float32)
    if np.isnan(scores).any():
        raise _wrong("scores", "an array with NaN", "numbers")
    return list(scores.tolist())


def _special_ids(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, int]:
    """The ids that the file names, or llama.cpp's defaults for the kind of model."""
    ids: dict[str, int] = {}
    if vocabulary.is_sentencepiece:
        ids = {"bos": 1, "eos": 2, "unk": 0}
    elif vocabulary.model == "gpt2":
        ids = {"bos": 11, "eos": 11} if vocabulary.pre.bos_by_default else {"eos": 11}
    count = len(vocabulary.texts)
    ids = {name: token for name, token in ids.items() if token < count}
    for name, keys in _ID_KEYS.items():
        for key in keys:
            value = metadata.get(PREFIX + key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong(key, _kind(value), "a token id")
            if value in NO_TOKENS:
                ids.pop(name, None)
            elif not 0 <= value < count:
                raise _wrong(key, f"{value}", f"0 to {count - 1}, the ids of the vocabulary")
            else:
                ids[name] = value
    return ids


def _suppressed(metadata: Mapping[str, Any], count: int) -> frozenset[int]:
    """The tokens that no answer may have, by the file: those of images, where only texts are read.
    TokenizerError for anything but ids, and for a list of all of them."""
    key = "suppress_tokens"
    value = metadata.get(PREFIX + key)
    if value is None:
        return frozenset()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        raise _wrong(key, _kind(value), "an array of token ids")
    array = np.asarray(value)
    if array.size and (array.dtype.kind not in "iu" or not 0 <= array.min() <= array.max() < count):
        raise _wrong(key, "an array with something else than token ids", f"ids in 0 to {count - 1}")
    found = frozenset(map(int, array))
    if len(found) == count:
        raise _wrong(key, "all tokens", "fewer: an answer would have none")
    return found


def _know_by_text(vocabulary: Vocabulary) -> None:
    """Find tokens that the file does not name by their text; they are control tokens whatever their
    type."""
    for name, texts in _KNOWN:
        if name in vocabulary.special:
            continue
        found = [vocabulary.ids[text] for text in texts if text in vocabulary.ids]
        if found:
            vocabulary.special[name] = min(found)
            vocabulary.kinds[min(found)] |= TokenKind.CONTROL


def _find_end_of_generation(vocabulary: Vocabulary) -> None:
    """The tokens that end an answer, by name and by text."""
    ids, kinds, special = vocabulary.ids, vocabulary.kinds, vocabulary.special
    for text, token in ids.items():
        if kinds[token] & TokenKind.CONTROL and "unused" in text:
            kinds[token] |= TokenKind.UNUSED
    eog = {special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in special}
    for text in _END_OF_GENERATION:
        if text in ids:
            eog.add(ids[text])
            kinds[ids[text]] |= TokenKind.CONTROL
    for text in _SHOWN:
        if text in ids:
            kinds[ids[text]] = TokenKind.USER_DEFINED
    eog |= {special[name] for name in ("eos", "eot", "eom") if name in special}
    found = {text for text in (*_END_OF_GENERATION, "<|plamo:eos|>") if ids.get(text, -1) in eog}
    calls = bool(found & {"<|call|>", "<|calls|>"})
    if calls and "<|end|>" in found and found & {"<|return|>", "<|flush|>"}:  # there it ends a part of an answer
        eog.discard(ids["<|end|>"])
        kinds[ids["<|end|>"]] = TokenKind.USER_DEFINED
    if "</s>" in found and found & {"<|tool_response>", "<|plamo:eos|>"}:
        eog.discard(ids["</s>"])
        kinds[ids["</s>"]] = TokenKind.NORMAL
    vocabulary.eog_ids = frozenset(eog)


def _set_stripping(vocabulary: Vocabulary, name: object) -> None:
    """Phi-3's special tokens swallow the white space after them; the file has no key for it but the
    name."""
    if not isinstance(name, str) or not any(part in name.lower() for part in _STRIPPING_PHI3):
        return
    ids, kinds = vocabulary.ids, vocabulary.kinds
    for token in special_tokens(vocabulary):
        kinds[token] |= TokenKind.STRIP_RIGHT
    for text, strips in (("</s>", True), ("<unk>", False), ("<s>", False), ("<|endoftext|>", False)):
        if text not in ids:
            raise TokenizerError(f"the model is called a Phi-3, but its vocabulary lacks {text!r}")
        token = ids[text]
        kinds[token] = kinds[token] | TokenKind.STRIP_RIGHT if strips else kinds[token] & ~TokenKind.STRIP_RIGHT


def special_tokens(vocabulary: Vocabulary) -> Iterable[int]:
    """The ids of tokens that are looked for in text before anything else."""
    wanted = SPECIAL | TokenKind.USER_DEFINED
    return (token for token, kind in enumerate(vocabulary.kinds) if kind & wanted)


def is_mark(text: str) -> bool:
    """Whether a user-defined token looks like <|user|> or [INST], and not like a word, signs or
    white space."""
    return any(map(str.isalnum, text)) and not all(letter.isalnum() or letter.isspace() for letter in text)
