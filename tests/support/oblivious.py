"""Tokenizers in both forms, and the memory that the oblivious one works in."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import Any

from appliance.kernels.runtime.table import KernelTable, load
from appliance.models.file import gguf
from appliance.oblivious import Sweeps
from appliance.oblivious.encoder import Encoder
from appliance.oblivious.pairs import last_merge
from appliance.text import tokenizer
from appliance.text.tokenizer import Tokenizer
from tests.support.demo_model import demo_model

_STEMS = ("the", "in", "er", "an", "re", "on", "at", "en", "it", "st", "ou", "is", "al", "de", "nd", "to", "of", "un")


@cache
def kernels() -> KernelTable:
    """The kernels of this machine."""
    return load()


@cache
def metadata() -> Any:
    """The demo model's."""
    return gguf.parse(demo_model().read_bytes()).metadata


@cache
def both(pre: str = "smollm") -> tuple[Tokenizer, Tokenizer]:
    """The demo model's tokenizer with some pre-tokenizer: as it is, and oblivious."""
    return forms({**metadata(), "tokenizer.ggml.pre": pre})


def forms(of: Any) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer as it is, and oblivious."""
    plain = tokenizer.load(of)
    swept = copy.copy(plain)
    swept.sweeping = Sweeps(swept, kernels())
    return plain, swept


def encoder_of(swept: Tokenizer) -> Encoder:
    """The part that reads texts."""
    assert isinstance(swept.sweeping, Sweeps)
    return swept.sweeping.encoder


def small_merges() -> tuple[str, ...]:
    """Merges of a small vocabulary, which has no text by two of them."""
    merges = [f"{stem[0]} {stem[1]}" for stem in _STEMS if len(stem) == 2]
    return (*merges, "t h", "th e", "Ġ the", "Ġ t", "Ġt o", "Ġ in", "l l", "ll o", "a a", "aa aa")


def whole_words_of(plain: Tokenizer) -> list[str]:
    """Texts of the tokens that no merges make, by themselves, doubled and in a sentence."""
    merges = plain.merges
    assert merges is not None
    words = [bytes(merges.letters[letter] for letter in text).decode("utf-8", "replace")
             for text in sorted(merges.texts) if len(text) > 1 and last_merge(text, merges.ranks) is None]
    return [made for word in words for made in (word, word + word, f"so {word}, {word.strip()} {word}s")]


def memory_of(swept: Tokenizer, length: int) -> list[tuple[int, int]]:
    """The pages that texts of a class are encoded in: work, text, tables."""
    encoder = encoder_of(swept)
    room = encoder.room(length)
    parts = [(each.address, each.nbytes) for each in room.all()]
    return parts + [(each.address, each.nbytes) for each in encoder.tables.values()]


def drawn_texts(count: int, nbytes: int, seed: int) -> list[str]:
    """Texts of exactly so many bytes: prose, code, digits, other scripts, white space, signs, control-like text."""
    rng, texts = random.Random(seed), []
    for number in range(count):
        parts: list[str] = []
        while len("".join(parts).encode()) < nbytes:
            parts.append(_KINDS[(number + rng.randrange(3)) % len(_KINDS)](rng))
        data = "".join(parts).encode()[:nbytes]
        text = data.decode("utf-8", "ignore")
        texts.append(text + "." * (nbytes - len(text.encode())))
    return texts


def _words(rng: random.Random, low: str, high: str, most: int) -> str:
    return "".join(chr(rng.randrange(ord(low), ord(high))) for _ in range(rng.randint(1, most)))


_KINDS = (
    lambda rng: rng.choice(_STEMS) + rng.choice(_STEMS) + rng.choice((" ", ", ", ". ", "'s ", "'re ", "\n")),
    lambda rng: f"    {rng.choice(_STEMS)}_{rng.choice(_STEMS)}({rng.randrange(100)}) -> {{'x': [0]}};\n",
    lambda rng: str(rng.randrange(10 ** rng.randint(1, 9))) + rng.choice((" ", ",", ".", "-")),
    lambda rng: _words(rng, "а", "я", 9) + " ",
    lambda rng: _words(rng, "一", "俿", 7) + rng.choice(("。", "，", "")),
    lambda rng: _words(rng, "א", "ת", 6) + rng.choice((" ", "\u00a0")),
    lambda rng: rng.choice((" ", "\t", "\n", "\r\n", "\u3000")) * rng.randint(1, 5),
    lambda rng: rng.choice("😀👍🏽☃️∑≠€~^|<>[]{}\\") * rng.randint(1, 3),
    lambda rng: rng.choice(("<|im_start|>", "<|im_end|>", "<|im_", "|>", "[INST]")),
)
