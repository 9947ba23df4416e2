"""Detectors over a text that arrives in pieces, so that the parts add up to the whole.

All detectors look at the same text. Hits that overlap are replaced together, so that what one of
them finds never stays because another began earlier.

For each expression, text is certain up to the first position from which some path through it runs
into the end of the text so far. The least of these positions is the bound: text from there on is
held back, and so are hits that reach beyond it.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.detectors.candidates.row import CONTEXT, Candidate, Detector
from appliance.detectors.folding import Folded
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import Automaton
from appliance.policy.schema.patterns import bounds

SLICE = 1 << 15  # characters between two looks at whether anybody waits
_NEAR = 12  # characters that are held back before the automaton is asked how many need to be
_ASCII = "".join(map(chr, range(128)))
_BETWEEN, _JOINED = " .-", "\u2e80"  # between the first word and the first digit; scripts without spaces begin there


class Hit(NamedTuple):
    """A place in a text, and the row of the detector that found it."""

    start: int
    end: int
    row: int


class CandidateSearch:
    """One expression, and the detectors that judge its candidates."""

    def __init__(self, expression: str, rows: dict[int, Detector], table: KernelTable) -> None:
        self.automaton = Automaton(expression, table)
        self._rows = rows
        found = bounds(expression)
        self._least = found.low  # characters of a match, at least
        self._chars = "".join(each for each in _ASCII if ord(each) in found.chars)
        self._not_first = "".join(each for each in _ASCII if ord(each) not in found.first)
        self._wide = 128 in found.chars  # whether a match may hold characters beyond ASCII
        first = next(iter(rows.values()))
        self._needs, self._needed = frozenset(first.needs), first.least
        self._lead, self.heads = first.lead, first.heads
        self._longest = max(map(len, self.heads), default=0)
        self.wakes = frozenset(first.wakes)
        self._opening = re.compile(first.opening) if first.opening else None

    def certain(self, folded: Folded, start: int) -> int:
        """Return from where on text to come may matter to what is found after `start`."""
        text = folded.text
        if not self._begins(text, start):
            return max(start, len(text) - self._longest + 1)
        tail = text[max(start, len(text) - self.automaton.width - 1):]
        if self._lead and self._needs.isdisjoint(tail):
            tail = text[max(start, len(text) - self._lead):].lstrip(self._not_first)
            return len(text) - len(tail)
        if not self._wide or tail.isascii():
            tail = tail[len(tail.rstrip(self._chars)):].lstrip(self._not_first)
            if len(tail) <= _NEAR:
                return len(text) - len(tail)
        if self._opening is not None:
            begun = self._opening.search(text, max(start, len(text) - self.automaton.width))
            return len(text) if begun is None else begun.start()
        open_at = self.automaton.undecided(folded.codes, start)
        return int(open_at[0]) if len(open_at) else len(text)

    def _begins(self, text: str, start: int) -> bool:
        """Whether one of the words stands there with which candidates begin, from a place on."""
        if not self.heads:
            return True
        low = text[start:].lower()
        return any(head in low for head in self.heads)

    def hits(self, folded: Folded, start: int, end: int, *, final: bool) -> tuple[list[Hit], int]:
        """Return the hits of candidates that begin from `start` to before `end`, and up to where
        all are known: a candidate that cannot be judged yet, and what follows it, are not."""
        found, place = list[Hit](), end
        if not self._may_match(folded.text[start:]):
            return found, place
        for spans in self.automaton.spans(folded.codes, start):
            for first, last in spans.tolist():
                if first >= end:
                    return found, place
                context = max(0, first - CONTEXT)
                candidate = Candidate(folded.text[context:last], first - context, folded.text[last:last + CONTEXT],
                                      last=final)
                hits = [Hit(context + a, context + b, number) for number, row in self._rows.items()
                        for a, b in row.find(candidate)]
                if candidate.open:
                    return found, first
                found += hits
                place = max(end, last)
        return found, place

    def _may_match(self, text: str) -> bool:
        """Whether a text has what each match has."""
        if len(text) < self._least or (self._needs and self._needs.isdisjoint(text)) or not self._begins(text, 0):
            return False
        return self._needed == 1 or sum(map(text.count, self._needs)) >= self._needed


class Detection:
    """The detectors that a policy chose."""

    def __init__(self, detectors: Iterable[Detector], table: KernelTable) -> None:
        self.rows = tuple(detectors)
        expressions = dict.fromkeys(row.expression for row in self.rows)
        self.searches = tuple(CandidateSearch(each, {number: row for number, row in enumerate(self.rows)
                                            if row.expression == each}, table) for each in expressions)
        heads = {head for row in self.rows for head in (*row.heads, *row.openings)}
        self._heads = re.compile("|".join(map(re.escape, sorted(heads))) or r"(?!)")
        self._spoken = frozenset(number for number, each in enumerate(self.searches) if each.heads)
        by_wakes = defaultdict[frozenset[str], list[int]](list)
        for number, each in enumerate(self.searches):
            if each.wakes:
                by_wakes[each.wakes].append(number)
        self._waking = tuple((wakes, frozenset(numbers)) for wakes, numbers in by_wakes.items())
        self._split = dict[tuple[bool, ...], tuple[tuple[int, ...], tuple[int, ...]]]()  # by which of them a text lacks

    @property
    def all(self) -> tuple[int, ...]:
        """The numbers of all searches."""
        return tuple(range(len(self.searches)))

    def split(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the searches whose candidates have something that a text lacks, and the others."""
        lacks = (*(wakes.isdisjoint(text) for wakes, _ in self._waking), not self._heads.search(text.lower()))
        if lacks not in self._split:
            groups = (*(numbers for _, numbers in self._waking), self._spoken)
            asleep = frozenset[int]().union(*itertools.compress(groups, lacks))
            self._split[lacks] = tuple(asleep), tuple(number for number in self.all if number not in asleep)
        return self._split[lacks]

    def apply(self, text: str, between: Callable[[], None]) -> str:
        """Return a whole text with a replacement for each hit."""
        stage, out = self.stage(), []
        for place in range(0, len(text), SLICE):
            out.append(stage.feed(text[place:place + SLICE]))
            between()
        return "".join([*out, stage.finish()])

    def stage(self) -> DetectorStage:
        """Return the detectors over one text."""
        return DetectorStage(self)


class DetectorStage:
    """Detectors over one text. Places count from the beginning of the text that is kept."""

    def __init__(self, detection: Detection, found: list[tuple[int, int, str]] | None = None) -> None:
        """`found` takes each replacement: start and end in the whole text, and the detector."""
        self._detection, self._found = detection, found
        self._folded, self._gone = Folded(), 0  # the text that is kept, and how many characters were before it
        self._left = 0  # how much of it has left
        self._next = [0] * len(detection.searches)  # where each search goes on, in folded text
        self._hits: list[Hit] = []  # in folded text, of which no part has left

    def work(self, more: int) -> int:
        """Return how many words of streams the next piece of so many characters takes, roughly."""
        length = len(self._folded.source) - self._left + more + 1024
        return sum(search.automaton.work for search in self._detection.searches) * length // 64

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now certain."""
        if not piece:
            return ""
        self._folded.extend(piece)
        return self._advance(final=False)

    def finish(self) -> str:
        """Return the text held back, now that no more comes."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        folded = self._folded
        places, awake = self._next, self._detection.all
        if not final and places:
            awake = self._sleep(folded.text)
        for number in awake:
            self._search(number, folded, final=final)
        out, bound = self._leave(folded, min(places, default=len(folded.text)))
        self._forget(folded, bound)
        return out

    def _sleep(self, text: str) -> tuple[int, ...]:
        """Let searches go on at the last word that have nothing in the text which has not been
        searched, but for what that word may begin. Returns the others."""
        start = min(self._next)
        place = len(text[start:].rstrip(_BETWEEN)) + start
        while place > start and " " < text[place - 1] < _JOINED:
            place -= 1
        if start < place == len(text) and text[-1] >= _JOINED:
            place -= 1  # the first of two characters that are a word
        asleep, awake = self._detection.split(text[start:])
        for number in asleep:
            if self._next[number] < place:
                self._next[number] = place
        return awake

    def _search(self, number: int, folded: Folded, *, final: bool) -> None:
        """Take the certain candidates of one search."""
        search, place = self._detection.searches[number], self._next[number]
        certain = len(folded.text) if final else search.certain(folded, place)
        if place < certain:
            hits, certain = search.hits(folded, place, certain, final=final)
            self._hits += hits
        self._next[number] = max(place, certain)

    def _leave(self, folded: Folded, bound: int) -> tuple[str, int]:
        """Return the text that leaves, and up to where it is settled."""
        regions = _joined(self._hits) if self._hits else []
        while regions and regions[-1].end > bound:
            bound = min(bound, regions.pop().start)
        out, left = list[str](), self._left
        for region in regions:
            start, end = max(left, folded.origin(region.start)), folded.end(region.end)
            if start < end:
                row = self._detection.rows[region.row]
                out += [folded.source[left:start], row.replacement]
                left = end
                if self._found is not None:
                    self._found.append((self._gone + start, self._gone + end, row.name))
        place = max(left, folded.origin(bound))
        out.append(folded.source[left:place])
        self._left = place
        if self._hits:
            self._hits = [hit for hit in self._hits if hit.start >= bound]
        return "".join(out), bound

    def _forget(self, folded: Folded, bound: int) -> None:
        """Let go of text that has left, but for the context of what comes."""
        cut = folded.whole(max(0, bound - CONTEXT - 1))
        if cut > 0:
            gone = folded.drop(cut)
            self._gone, self._left = self._gone + gone, self._left - gone
            self._next = [place - cut for place in self._next]
            self._hits = [Hit(hit.start - cut, hit.end - cut, hit.row) for hit in self._hits]


def _joined(hits: Iterable[Hit]) -> list[Hit]:
    """Return hits in order. Hits that overlap are joined, under the first of their rows."""
    found: list[Hit] = []
    for hit in sorted(hits):
        if found and hit.start < found[-1].end:
            last = found[-1]
            found[-1] = Hit(last.start, max(last.end, hit.end), min(last.row, hit.row))
        else:
            found.append(hit)
    return found
