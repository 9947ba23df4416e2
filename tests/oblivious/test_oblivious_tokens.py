"""The oblivious tokenizer against the plain one, whose tokens are those of llama.cpp: the same, for all texts."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import pytest

from appliance.boot.selftest import search
from appliance.errors import CapacityError, UnsupportedError
from appliance.kernels.runtime import table, targets
from appliance.oblivious import Sweeps
from appliance.oblivious.cuts import cut_of
from appliance.oblivious.encoder import LEAST, ROUNDS, class_of
from appliance.text import tokenizer
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.support import libraries
from tests.support.extent import examples, some
from tests.support.oblivious import (
    both,
    drawn_texts,
    encoder_of,
    forms,
    metadata,
    small_merges,
    whole_words_of,
)
from tests.support.texts import TEXTS, around, random_texts
from tests.support.vocabularies import byte_level, metadata_of

GOLDEN = Path(__file__).parents[1] / "goldens" / "tokenizer" / "demo.json"
CUTS = ("smollm", "gpt-2", "qwen2", "dbrx", "qwen35", "llama3")
COUNT = examples(500, 20_000)


def _texts(count: int, seed: int) -> list[str]:
    return random_texts(count * 9 // 10, seed) + drawn_texts(count // 10, 240, seed)


@pytest.mark.slow
@pytest.mark.parametrize("pre", CUTS)
def test_drawn_texts(pre: str) -> None:
    """Texts of all scripts have the same tokens: 500 by each of the cuts, or 20,000 in the soak."""
    plain, swept = both(pre)
    for text in _texts(COUNT, zlib.crc32(pre.encode())):
        assert plain.encode(text, parse_special=True) == swept.encode(text, parse_special=True), text


@pytest.mark.parametrize("pre", CUTS)
def test_hard_texts(pre: str) -> None:
    """So have those at the borders of every rule, short ones and one as long as all together."""
    plain, swept = both(pre)
    for text in [*TEXTS, "".join(TEXTS)]:
        assert plain.encode(text) == swept.encode(text), text


@pytest.mark.guests
@pytest.mark.parametrize("target", [each.name for each in targets.supported()[1:]])
def test_other_processors(target: str) -> None:
    """So have those where no AVX-512 is: loads of single entries instead of shuffles. Bodies and answers are the same,
    too."""
    plain, swept = tokenizer.load(metadata()), tokenizer.load(metadata())
    kernels = table.load(target, libraries.library(target))
    swept.sweeping = Sweeps(swept, kernels)
    for answer in (search.read_string, search.write_string, search.find_stops):
        assert answer(table.load()) == answer(kernels), answer
    for text in [*TEXTS, *drawn_texts(60, 240, 4)]:
        assert plain.encode(text, parse_special=True) == swept.encode(text, parse_special=True), text


def test_goldens() -> None:
    """What llama.cpp answered for the demo model's hard texts is what the kernel answers."""
    swept, golden = both()[1], json.loads(GOLDEN.read_text())
    assert golden["plain"] == [" ".join(map(str, swept.encode(text))) for text in TEXTS]


@pytest.mark.parametrize("parse", [False, True])
def test_special_tokens(parse: bool) -> None:
    """Control tokens are found where the plain form finds them: whole, cut, doubled, and never in untrusted spans."""
    plain, swept = both()
    names = [plain.token_text(token) for token in range(17)]
    rng = random.Random(7)
    for text in around(names):
        cuts = sorted(rng.sample(range(len(text) + 1), 2)) if len(text) > 1 else [0, len(text)]
        for spans in ((), [(cuts[0], cuts[1])], [(0, len(text))]):
            own = text[:cuts[0]]
            assert plain.encode(text, parse_special=parse, untrusted=spans, own=own) == swept.encode(
                text, parse_special=parse, untrusted=spans, own=own), (text, spans)


@pytest.mark.parametrize("pre", CUTS)
def test_newlines_after_special_tokens(pre: str) -> None:
    """A special token ends a piece: a run of newlines after it is a word of its own."""
    plain, swept = both(pre)
    for text in ("<|im_start|>\n\n>", "<|im_start|>\r\n]", "<|im_end|>\n\t", "x<|im_end|>  \n y", "<|im_end|>  y"):
        assert plain.encode(text, parse_special=True) == swept.encode(text, parse_special=True), text


def test_white_space_after_special_tokens() -> None:
    """Where a model strips it, it goes with the token, up to the next one."""
    kinds = {**byte_level(small_merges(), special=("<a>", " <b>", "<c>", "</s>", "<unk>", "<s>", "<|endoftext|>")),
             "general.name": "phi-3"}
    plain, swept = forms(kinds)
    for text in ("<a> x", "<a> \n\t <b> <c>", "<a>  <b>y", "<a>\u3000z", " <b>  ", "<c> <c> <c>"):
        assert plain.encode(text, parse_special=True) == swept.encode(text, parse_special=True), text


def test_bytes_that_a_vocabulary_lacks() -> None:
    """They are left out, as the plain form does it."""
    plain, swept = forms(byte_level(small_merges(), without=b" \x03e\xc3\xf0"))
    for text in ("e\x03 the é", "\x03", "x \U0001f600 llo", ""):
        assert plain.encode(text) == swept.encode(text)


def test_equal_pairs_in_a_row() -> None:
    """Of neighbours that are the same, every other merges, from the left."""
    plain, swept = forms(byte_level((*small_merges(), "Ġ Ġ", "ĠĠ ĠĠ")))
    for count in range(1, 40):
        for text in ("a" * count, "aal" * count, " " * count + "x", "lll" * count):
            assert plain.encode(text) == swept.encode(text)


def test_merges_in_no_order() -> None:
    """Lists where a part has a higher rank than what is made of it give the same tokens."""
    rng = random.Random(11)
    for _ in range(20):
        texts, merges = [*"abcd"], []
        for _ in range(12):
            left, right = rng.choice(texts), rng.choice(texts)
            if left + right not in texts and len(left + right) < 9:
                texts.append(left + right)
                merges.append(f"{left} {right}")
        rng.shuffle(merges)
        plain, swept = forms(byte_level(tuple(merges)))
        for _ in range(20):
            text = "".join(rng.choice("aabbcd") for _ in range(rng.randint(1, 30)))
            assert plain.encode(text) == swept.encode(text), (merges, text)


def test_several_merges_of_one_token() -> None:
    """Of merges that make the same, the one of the text by itself is done."""
    rng = random.Random(13)
    for _ in range(30):
        merges: list[str] = []
        texts = list("abc")
        for _ in range(16):
            left, right = rng.choice(texts), rng.choice(texts)
            if len(left + right) < 7 and f"{left} {right}" not in merges:
                texts.append(left + right)
                merges.append(f"{left} {right}")
        rng.shuffle(merges)
        plain, swept = forms(byte_level(tuple(merges)))
        for _ in range(20):
            text = "".join(rng.choice("aabc") for _ in range(rng.randint(1, 30)))
            assert plain.encode(text) == swept.encode(text), (merges, text)


def test_whole_words() -> None:
    """A word that is a token is that token, whatever merges make of it; longer ones and parts are not."""
    wholes = ("Ġtoll", "hello", "aab", "Ġł", "x" * 40, "''", "Ġ123")
    kinds = byte_level(small_merges(), pre="llama3")
    tokens = [*kinds["tokenizer.ggml.tokens"], *wholes]
    plain, swept = forms({**kinds, "tokenizer.ggml.tokens": tokens,
                          "tokenizer.ggml.token_type": [*kinds["tokenizer.ggml.token_type"], *[1] * len(wholes)]})
    rng = random.Random(17)
    parts = [" toll", "hello", "aab", "x" * 40, "x" * 39, "''", " 123", "toll", " tolls", "<|im_start|>", "\n", " "]
    found = set[int]()
    for _ in range(400):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 12)))
        wanted = plain.encode(text, parse_special=True)
        assert wanted == swept.encode(text, parse_special=True), text
        found |= set(wanted)
    assert len(found & {tokens.index(each) for each in wholes}) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-bpe"])
def test_published_vocabularies(name: str) -> None:
    """Llama 3's 280,147 merges and its tokens without one: 500 drawn texts, and 600 of the texts of whole words;
    100,000 and all of these in the soak."""
    plain, swept = forms(metadata_of(name))
    for text in [*TEXTS, *_texts(examples(500, 100_000), 3), *some(whole_words_of(plain), 600)]:
        assert plain.encode(text, parse_special=True) == swept.encode(text, parse_special=True), text


def test_blocks_of_rounds() -> None:
    """Texts of people take one block of rounds; a text that takes more has the same tokens."""
    merges = tuple(f"a{'b' * count} b" if count else "a b" for count in range(3 * ROUNDS))  # one a round
    plain, swept = forms(byte_level(merges))
    text = "a" + "b" * 3 * ROUNDS
    assert plain.encode(text) == swept.encode(text)
    assert 1 < encoder_of(swept).blocks
    plain, swept = both()
    assert plain.encode("e" * 200) == swept.encode("e" * 200)
    assert 1 < encoder_of(swept).blocks
    with pytest.raises(CapacityError, match="too many merges"):
        swept.encode("e" * 5000)
    for text in drawn_texts(9, 250, 3):
        assert plain.encode(text) == swept.encode(text)
        assert encoder_of(swept).blocks == 1


def test_no_more_tokens_than_are_allowed() -> None:
    """A text with more tokens is refused."""
    swept = both()[1]
    assert 5 == len(swept.encode("a b c d e", most=5))
    with pytest.raises(CapacityError, match="more than 4 tokens"):
        swept.encode("a b c d e", most=4)


def test_pieces() -> None:
    """Tokens have the same bytes, and are special or not, in both forms."""
    plain, swept = both()
    for token in [*range(300), *some(range(plain.vocab_size), 700)]:
        assert (plain.piece(token), plain.is_special(token)) == (swept.piece(token), swept.is_special(token))


def test_nothing_is_left() -> None:
    """After a call, the memory that it worked in is zero."""
    swept = both()[1]
    swept.encode("the secret word is Rumpelstiltskin")
    room = encoder_of(swept).room(LEAST)
    assert all(not any(each.view) for each in room.all())


@pytest.mark.parametrize(("nbytes", "wanted"), [(0, 256), (256, 256), (257, 512), (1000, 1024), (4097, 4352)])
def test_classes(nbytes: int, wanted: int) -> None:
    """A class is a multiple of 256 bytes."""
    assert wanted == class_of(nbytes)


def test_not_covered() -> None:
    """Other tokenizers are refused, and what is covered is named."""
    with pytest.raises(UnsupportedError, match=r"covered: .*qwen2"):
        forms(byte_level(pre="tekken"))
    covered = [name for name, pre in PRE_TOKENIZERS.items() if _is_covered(pre)]
    assert 51 == len(covered)


def _is_covered(pre: object) -> bool:
    try:
        cut_of(pre)  # type: ignore[arg-type]
    except UnsupportedError:
        return False
    return True


def test_the_compiled_path_is_short() -> None:
    """An auditor reads it in an afternoon: at most 1,500 lines."""
    folder = Path(__file__).parents[2] / "appliance" / "kernels" / "code" / "oblivious"
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("*.py")) <= 1500
