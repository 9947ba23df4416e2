"""Tokenizers whose letters are characters and whose spaces are marks, by bytes: the first merges
make characters, and a space stands for the mark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from appliance.errors import UnsupportedError
from appliance.kernels.layouts.blind import BY_CLASS, BY_LINES, BY_SPACES, WHOLE
from appliance.oblivious.pairs import last_merge, single_merges
from appliance.text.tokenizer.pretokenizers import GEMMA4
from appliance.text.tokenizer.tokenizer import SPACE_MARK, Ids, MergeList, byte_letters

_HINT = 'use another model, or privacy.memory_access = "open"'
_LETTERS = dict(enumerate(byte_letters()))
_SURROGATES = {chr(code) for code in range(0xD800, 0xE000)}


def cut_number(merges: MergeList) -> int:
    """How text is cut, as `TextPass.MARKED` has it. UnsupportedError for a way that is not covered.
    """
    if not merges.marked:
        return BY_CLASS
    if merges.joiner:
        if merges.pre.stages != GEMMA4.stages:
            raise UnsupportedError("the model's pre-tokenizer has no oblivious form yet", hint=_HINT)
        return BY_LINES
    apart = not any(SPACE_MARK in text.lstrip(SPACE_MARK) for text in merges.texts)
    return BY_SPACES if apart else WHOLE


def by_bytes(merges: MergeList) -> tuple[MergeList, int]:
    """The same tokenizer by bytes, with one merge for each token, and `run_of` it, whose merges are
    the first ones. UnsupportedError where there is none."""
    texts = [text for text in merges.texts if " " not in text and not _SURROGATES & {*text}]
    names = {lettered(text): text for text in texts}
    singles = _singles(merges, texts)
    run = 0 if merges.joiner else run_of(singles)
    parts = [merge.split(" ") for merge in _in_order(singles, run)]
    last = len(parts) - max(run - 1, 0)
    if SPACE_MARK not in names.values() or any("Ġ" in lettered(left + right) and lettered(left + right) not in names
                                               for left, right in parts):
        raise UnsupportedError("the model's vocabulary has no token for a space, or for one in a part, which has no "
                               "oblivious form yet", hint=_HINT)
    made = [f"{lettered(left)} {lettered(right)}" for left, right in parts[last:]]
    made += [*_characters([*texts, *map("".join, parts)]),
             *(f"{lettered(left)} {lettered(right)}" for left, right in parts[:last])]

    def ids_of(part: str) -> Ids:
        if part in names:
            return merges.ids_of(names[part])
        return merges.byte_ids[merges.letters[part]] if len(part) == 1 else ()

    return merges._replace(ranks={merge: rank for rank, merge in enumerate(dict.fromkeys(made))}, ids_of=ids_of,
                           texts=names.keys(), joiner=" "), run


def lettered(text: str) -> str:
    """A text as letters of its bytes; a mark is a space."""
    return _of_bytes(text.replace(SPACE_MARK, " ").encode())


def _of_bytes(data: bytes) -> str:
    return data.decode("latin-1").translate(_LETTERS)


def _singles(merges: MergeList, texts: Collection[str]) -> Mapping[str, int]:
    """The last merge of each token, as "left right", and its rank."""
    if merges.joiner:
        plain = {merge: rank for merge, rank in merges.ranks.items()
                 if merge.count(" ") == 1 and not _SURROGATES & {*merge}}
        return single_merges(plain)
    found = ((last_merge(text, merges.ranks, ""), merges.ranks[text]) for text in texts if len(text) > 1)
    return {merge: rank for merge, rank in found if merge is not None}


def run_of(ranks: Mapping[str, int]) -> int:
    """The longest token of marks alone, where all of them merge after all else, by one score; 0
    where it is not so. From the left, each then has as many marks as there may be."""
    worst = max(ranks.values(), default=0)
    runs = {merge.replace(" ", "") for merge, rank in ranks.items() if rank == worst}
    longest = len(runs) + 1
    if len(runs) < 2 or runs != {SPACE_MARK * count for count in range(2, longest + 1)}:
        return 0
    others = {part for merge, rank in ranks.items() if rank != worst for part in merge.split(" ")}
    return 0 if others & runs else longest


def _in_order(ranks: Mapping[str, int], run: int) -> list[str]:
    """Merges by rank, in a run by length. UnsupportedError where two others have one."""
    if len(set(ranks.values())) < len(ranks) - max(run - 2, 0):
        raise UnsupportedError("two tokens of the model have the same score, which has no oblivious form yet",
                               hint=_HINT)
    return sorted(ranks, key=lambda merge: (ranks[merge], len(merge)))


def _characters(texts: Iterable[str]) -> Iterator[str]:
    """The merges that make all characters beyond ASCII, byte by byte: all second bytes first."""
    found = sorted({letter for text in texts for letter in text if letter > "\x7f" and letter != SPACE_MARK})
    encoded = [letter.encode() for letter in found]
    for count in (1, 2, 3):
        yield from (f"{_of_bytes(data[:count])} {_of_bytes(data[count:count + 1])}" for data in encoded
                    if len(data) > count)
