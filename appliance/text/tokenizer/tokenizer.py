"""Encode and decode: the two kinds of tokenizer behind one interface."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, SupportsIndex

import numpy as np

from appliance.errors import TokenizerError
from appliance.text.jinja.standins import Fill, StandIns
from appliance.text.tokenizer.merging import merge
from appliance.text.tokenizer.partition import TEXT, Fragment, Partitioner, Span, SpecialText, check_count
from appliance.text.tokenizer.pretokenizers import PreTokenizer
from appliance.text.tokenizer.splitting import Splitter
from appliance.text.tokenizer.vocabulary import PREFIX, SPECIAL, TokenKind, Vocabulary, is_mark, read, strings

MAX_MERGES = 1 << 22
SPACE_MARK = "\u2581"  # stands for a space within tokens

Ids = tuple[int, ...]

_MARKED_WORD = re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+").findall


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself where it is printable Latin-1, U+0100 and up
    otherwise."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_LETTER_OF_BYTE = dict(enumerate(byte_letters()))
_BYTE_OF_LETTER = {letter: byte for byte, letter in _LETTER_OF_BYTE.items()}
_HEX_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_KNOWN = 4096  # words of a call whose tokens are kept
_MOST_NBYTES = 4  # of a character
_HEX_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


class MergeList(NamedTuple):
    """A tokenizer by its data."""

    pre: PreTokenizer
    ranks: Mapping[str, int]  # of merges, each "left right"; without a joiner of what they make
    letters: Mapping[str, int]  # the byte of each letter
    ids_of: Callable[[str], Ids]  # the tokens of a part of a word that no merge goes on with
    texts: Collection[str]  # of the tokens that words may become
    joiner: str = " "
    marked: bool = False  # letters are characters, and spaces are SPACE_MARK
    leads: bool = False  # a space is put before each stretch of text
    byte_ids: Sequence[Ids] = ()  # the tokens of each byte that is no letter of a token


class Sweeping(Protocol):
    """A form of a tokenizer that touches the same pages for all texts of a length."""

    def encode(self, text: str, specials: Sequence[SpecialText], untrusted: Sequence[Span], *,
               inside: bool, fills: Sequence[Fill] = ()) -> list[int]:
        """Token ids of a text. Special tokens are found in it, but a guarded one never touches a
        span. `inside`: as of `Tokenizer.encode`. `fills`: bytes to put into the text."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token."""


class Tokenizer:
    """A model's tokenizer. Made by `load`; immutable, so that threads may share it."""

    def __init__(self, vocabulary: Vocabulary, words: Callable[[str], Iterable[str]],
                 tokens_of: Callable[[str], Ids], letters: Callable[[str], int],
                 merges: MergeList | None = None) -> None:
        self._vocabulary = vocabulary
        self._words = words  # text -> the words that are merged on their own
        self._tokens_of = tokens_of  # word -> ids
        self._letters = letters  # text -> letters that tokens must cover
        self._longest = max(map(len, vocabulary.texts), default=1)  # letters that one covers, at most
        self._partitioner = Partitioner(vocabulary)
        self.merges = merges  # None for another kind
        self.sweeping: Sweeping | None = None  # in the place of all that reads a text here
        self.vocab_size = len(vocabulary.texts)
        self.bos = vocabulary.special.get("bos")
        self.eos = vocabulary.special.get("eos")
        self.eot_ids = vocabulary.eog_ids  # ids that end an answer
        self.suppressed = vocabulary.suppressed  # ids that no answer may have
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.warnings = tuple(vocabulary.warnings)
        """What in the model's metadata was replaced by a default, in words."""

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False,
               untrusted: Sequence[Span] = (), own: str = "", most: int = sys.maxsize,
               inside: bool = False, counted: bool = False, stand_ins: StandIns | None = None) -> list[int]:
        """Token ids of `text`; CapacityError as soon as it is certain that there are more than
        `most`, so that what a text takes goes with what is allowed, not with its length.
        `add_special` adds what the model wants around a text (such as bos). `parse_special` reads
        the text of control tokens as these tokens, but where it touches one of the `untrusted`
        (start, end) spans. User-defined tokens that are marks in `own` are read in the same way.
        `inside`: the text continues another, so that no space is put before it. `counted`: what
        is returned has only the length that the ids would have. `stand_ins`: of texts to put into
        `text`, for a tokenizer that sweeps.
        Words are looked up once per call: nothing is kept between calls, so that no text can be
        guessed from how long another one takes. TokenizerError for lone surrogates."""
        _check_text(text)
        vocabulary = self._vocabulary
        ids: list[int] = _Counted() if counted else []
        ids += [vocabulary.special["bos"]] if add_special and self.add_bos else []
        if self.sweeping is not None:
            fills = list[Fill]()
            if stand_ins is not None:
                text, untrusted, fills = stand_ins.fill(text, untrusted)
            share = _MOST_NBYTES if fills and self._letters("é") == 1 else 1  # a fill has a letter for each byte
            check_count(len(ids) + self.at_least(text) // share, most)
            ids += self.sweeping.encode(text, self._partitioner.specials(parse_special, own), untrusted, inside=inside,
                                        fills=fills)
        else:
            self._encode_parts(self._partitioner.partition(text, parse_special, untrusted, own, most), text,
                               not inside, ids, most)
        if add_special and self.add_eos:
            ids.append(vocabulary.special["eos"])
        check_count(len(ids), most)
        return ids

    def _encode_parts(self, fragments: Iterable[Fragment], text: str, after_special: bool, ids: list[int],
                      most: int) -> None:
        """Append the ids of all fragments of a text."""
        known: dict[str, Ids] = {}
        for start, end, token in fragments:
            if token != TEXT:
                ids.append(token)
            else:
                self._encode_fragment(text[start:end], after_special, known, ids, most)
            after_special = token != TEXT

    def doubled(self, ids: Sequence[int]) -> list[str]:
        """Warnings, as llama.cpp gives them, about ids of `encode` with `add_special`: a text that
        begins or ends with the token that was added there has it twice."""
        ends = (("begins", self.add_bos, self.bos, ids[:2]), ("ends", self.add_eos, self.eos, ids[-2:]))
        return [f"the prompt {verb} with {self.token_text(token)!r}, which is added anyway, so that it is there twice; "
                "leave it out of the text"
                for verb, added, token, two in ends if added and token is not None and list(two) == [token, token]]

    def around(self, before: Sequence[int], after: Sequence[int], *, most: int = sys.maxsize) -> list[int] | None:
        """Token ids of a prompt for what stands between two texts, by the model's own tokens for
        that; None where it has none. CapacityError for more than `most`."""
        special = self._vocabulary.special
        if not {"fim_pre", "fim_suf", "fim_mid"} <= special.keys():
            return None
        begin = [special["bos"]] if self.add_bos else []
        ids = [*begin, special["fim_pre"], *before, special["fim_suf"], *after, special["fim_mid"]]
        check_count(len(ids), most)
        return ids

    def _encode_fragment(self, text: str, after_special: bool, known: dict[str, Ids], ids: list[int],
                         most: int) -> None:
        """Append the ids of a stretch without special tokens; `known` are words of this call."""
        if after_special and self._vocabulary.is_sentencepiece and self._vocabulary.add_space_prefix:
            text = " " + text
        check_count(len(ids) + self.at_least(text), most)
        tokens_of, get = self._tokens_of, known.get
        for word in self._words(text):
            found = get(word)
            if found is None:
                if len(known) >= _KNOWN:
                    known.clear()
                found = known[word] = tokens_of(word)
            ids += found
            if len(ids) > most:
                break
        check_count(len(ids), most)

    def at_least(self, text: str) -> int:
        """Tokens that a text without special tokens cannot have fewer of, by its length."""
        return self._letters(text) // self._longest

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. A model that puts a space
        before a text has it removed again."""
        parts: list[bytes] = []
        strip = self._vocabulary.add_space_prefix
        for token in ids:
            piece = self.piece(token)
            parts.append(piece.removeprefix(b" ") if strip else piece)
            strip = False
        return b"".join(parts).decode("utf-8", "replace")

    @property
    def leads(self) -> bool:
        """Whether a text has a space put before it."""
        return self._vocabulary.add_space_prefix

    def text_of(self, prompt: Iterable[int]) -> str:
        """The text of a prompt's tokens: control tokens have none."""
        return self.decode([token for token in prompt if not self.is_special(token)])

    def piece(self, token: int) -> bytes:
        """The bytes of one token; empty for unused ones. TokenizerError for ids beyond the
        vocabulary."""
        if self.sweeping is not None and 0 <= token < self.vocab_size:
            return self.sweeping.piece(token)
        return self._piece(token)

    def pieces(self) -> list[tuple[bytes, bool]]:
        """The bytes of every token, and whether it is special, by ids. No text is read, so
        `sweeping` has no part in it."""
        return [(self._piece(token), bool(kind & SPECIAL)) for token, kind in enumerate(self._vocabulary.kinds)]

    def _piece(self, token: int) -> bytes:
        text, kind = self.token_text(token), self._vocabulary.kinds[token]
        if kind & (SPECIAL | TokenKind.USER_DEFINED):
            return text.encode("utf-8", "surrogateescape")
        if kind & TokenKind.NORMAL:
            return self._normal_piece(text)
        hexadecimal = _HEX_BYTE.fullmatch(text) if kind & TokenKind.BYTE else None
        return bytes.fromhex(hexadecimal[1]) if hexadecimal else b""

    def _normal_piece(self, text: str) -> bytes:
        if self._vocabulary.is_sentencepiece or not self._vocabulary.pre.byte_level:
            return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
        try:
            return bytes([_BYTE_OF_LETTER[letter] for letter in text])
        except KeyError:  # a token that is written as it is
            return text.encode("utf-8", "surrogateescape")

    def token_text(self, token: int) -> str:
        """A token as the vocabulary writes it."""
        if not 0 <= token < self.vocab_size:
            raise TokenizerError(f"token id {token} is not in the vocabulary; allowed: 0 to {self.vocab_size - 1}")
        return self._vocabulary.texts[token]

    @property
    def specials(self) -> tuple[SpecialText, ...]:
        """All special tokens that a text may be searched for."""
        return self._partitioner.specials(True, "")

    def control(self, text: str) -> int | None:
        """The control token whose text this is; None where there is no such token."""
        return self._partitioner.whole(text)

    def is_special(self, token: int) -> bool:
        """Whether a token is a control (or unknown) token, which has no text of its own in an
        answer."""
        if self.sweeping is not None and 0 <= token < self.vocab_size:
            return self.sweeping.is_special(token)
        self.token_text(token)
        return bool(self._vocabulary.kinds[token] & SPECIAL)


class _Counted(list[int]):
    """The first of some ids, and how many they are."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iadd__(self, ids: Iterable[int]) -> Self:  # type: ignore[override,misc]
        for each in ids:
            self.append(each)
        return self

    def append(self, each: int) -> None:
        """Count one more."""
        if not self._count:
            super().append(each)
        self._count += 1

    def insert(self, _place: SupportsIndex, _each: int) -> None:
        """Count one more before the others."""
        self._count += 1


def load(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a model's metadata describes. UnsupportedError names what does not run
    here, TokenizerError what is wrong in the metadata."""
    vocabulary = read(metadata)
    if vocabulary.is_sentencepiece:
        return _sentencepiece(vocabulary)
    return _byte_pair(vocabulary, metadata)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"the text has a lone surrogate at character {error.start}, which no encoding of "
                             "Unicode allows", hint="send well-formed Unicode") from None


def _mergeable(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens that words may become: all but control tokens and marks, so that no text merges
    into one. A mark is found before words are (`partition`), or must not be found."""
    return {text: token for text, token in vocabulary.ids.items() if not _is_guarded(vocabulary, token)}


def _is_guarded(vocabulary: Vocabulary, token: int) -> bool:
    kind = vocabulary.kinds[token]
    return bool(kind & SPECIAL or (kind & TokenKind.USER_DEFINED and is_mark(vocabulary.texts[token])))


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """Any two neighbours merge if they make a token, best score first; other characters become byte
    tokens."""
    tokens = _mergeable(vocabulary)
    scores = np.asarray(vocabulary.scores, np.float32)
    order = np.unique(-scores, return_inverse=True)[1].tolist()  # 0 for the best score
    ranks = {text: order[token] for text, token in tokens.items()}
    byte_tokens = _byte_tokens(vocabulary)
    tokens_of = _merging(tokens, ranks, "", byte_tokens)

    # No token has the mark after another character: then no merge crosses such a place, and words
    # can be cut there.
    apart = not any(SPACE_MARK in text.lstrip(SPACE_MARK) for text in tokens)

    def words(text: str) -> Sequence[str]:
        text = text.replace(" ", SPACE_MARK)
        return _MARKED_WORD(text) if apart else [text]

    return Tokenizer(vocabulary, words, tokens_of, len,
                     MergeList(vocabulary.pre, ranks, _BYTE_OF_LETTER, _unmerged(tokens, byte_tokens), tokens.keys(),
                               "", True, vocabulary.add_space_prefix, byte_tokens))


def _merging(tokens: Mapping[str, int], ranks: Mapping[str, int], joiner: str,
             byte_tokens: Sequence[Ids]) -> Callable[[str], Ids]:
    """A word to its ids: its letters merged, and a part that is no token byte for byte."""

    ids_of = _unmerged(tokens, byte_tokens)

    def tokens_of(word: str) -> Ids:
        ids: list[int] = []
        for part in merge(list(word), ranks, joiner):
            token = tokens.get(part)
            ids += ids_of(part) if token is None else (token,)
        return tuple(ids)

    return tokens_of


def _unmerged(tokens: Mapping[str, int], byte_tokens: Sequence[Ids]) -> Callable[[str], Ids]:
    """A part of a word to its ids: one, or else those of its bytes."""

    def ids_of(part: str) -> Ids:
        token = tokens.get(part)
        return (token,) if token is not None else tuple(each for byte in part.encode() for each in byte_tokens[byte])

    return ids_of


def _byte_tokens(vocabulary: Vocabulary) -> list[Ids]:
    """The token of each byte: <0xHH>, or else the byte as a character, or else the unknown token.
    """
    ids = vocabulary.ids
    unknown = vocabulary.special.get("unk")
    found: list[Ids] = []
    for byte in range(256):
        token = ids.get(_HEX_BYTES[byte], ids.get(chr(byte), unknown) if byte < 128 else unknown)
        if token is None:
            raise TokenizerError(f"the vocabulary has neither a token for byte {byte} nor an unknown token")
        found.append((token,))
    return found


def _byte_pair(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    """Merges by the file's list, within the words that the pre-tokenizer cuts."""
    pre, tokens = vocabulary.pre, _mergeable(vocabulary)
    byte_level, ignore_merges, whole_newlines = pre.byte_level, pre.ignore_merges, pre.whole_newlines
    # Kimi-K2's files may have no merges; to any other model they are needed.
    has_none = metadata.get(PREFIX + "pre") == "kimi-k2" and PREFIX + "merges" not in metadata
    merges = [] if has_none else strings(metadata, "merges", MAX_MERGES)
    ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))  # the first of equals counts
    _forbid_special_merges(vocabulary, ranks)
    split = Splitter(pre).split
    # A byte that the vocabulary lacks is left out, as llama.cpp does it.
    names = [bytes([byte]).decode("utf-8", "surrogateescape") if byte_level else _HEX_BYTES[byte]
             for byte in range(256)]
    byte_tokens = [(tokens[name],) if name in tokens else () for name in names]
    merged = _merging(tokens, ranks, " ", byte_tokens)

    def tokens_of(word: str) -> Ids:
        if byte_level:
            word = word.encode().decode("latin-1").translate(_LETTER_OF_BYTE)
        if (ignore_merges or (whole_newlines and not word.strip("\n"))) and word in tokens:
            return (tokens[word],)
        return merged(word)

    if byte_level:
        absent = bytes(byte for byte, letter in _LETTER_OF_BYTE.items() if letter not in tokens)
        return Tokenizer(vocabulary, split, tokens_of, lambda text: len(text.encode().translate(None, absent)),
                         MergeList(pre, ranks, _BYTE_OF_LETTER, _unmerged(tokens, byte_tokens), tokens.keys()))
    leaves_out = not tokens.keys() >= {*_HEX_BYTES}  # then nothing is known of a text by its length
    return Tokenizer(vocabulary, lambda text: split(text.replace(" ", SPACE_MARK)), tokens_of,
                     (lambda text: 0) if leaves_out else len,
                     MergeList(pre, ranks, _BYTE_OF_LETTER, _unmerged(tokens, byte_tokens), tokens.keys(), marked=True,
                               byte_ids=byte_tokens))


def _forbid_special_merges(vocabulary: Vocabulary, ranks: dict[str, int]) -> None:
    for token, text in enumerate(vocabulary.texts):
        if _is_guarded(vocabulary, token):
            for at in range(1, len(text)):
                ranks.pop(f"{text[:at]} {text[at:]}", None)
