"""Texts of earlier answers, whose pages a new text begins with: those in memory at once, those on a
shelf a little later.

A text begins with the pages that are in memory (`prefixes`). The pages after them that are on the
shelf alone (`persistence`) are restored between passes; until then the text is not read. It is the
slot's own pages that they are restored into, which its claim has: so nobody's admission depends on
what is kept.

Not safe to use from two threads at once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping

from appliance.engine.batch.sequence import Sequence
from appliance.engine.forward.persistence import BURST, RESTORING, ShelfPages
from appliance.engine.forward.prefixes import Prefixes
from appliance.engine.forward.seats import Seats
from appliance.kernels.layouts.attention import PAGE

CLOSING_SECONDS = 5.0  # at the end, for pages on their way to the shelf
_PUTTING_SECONDS = 30.0  # the same, for a text that is kept nowhere else
_PATIENCE = 0.05  # seconds at most that an idle engine waits for a page


class KeptTexts:
    """The texts of one cache; none until `open`."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._prefixes: Prefixes | None = None
        self._persisted: ShelfPages | None = None

    def open(self, prefixes: Prefixes | None, persisted: ShelfPages | None) -> None:
        """Keep pages of texts from now on: in memory, on a shelf."""
        self._prefixes, self._persisted = prefixes, persisted

    def close(self) -> None:
        """Wipe what is in memory, and keep no more. The shelf keeps its pages."""
        if self._persisted is not None:
            self._persisted.close(CLOSING_SECONDS)
        if self._prefixes is not None:
            self._prefixes.close()
        self.open(None, None)

    def divide(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let `tenants` share the room by their weights from now on. The texts of others go."""
        for each in (self._prefixes, self._persisted):
            if each is not None:
                each.divide(tenants, weights)

    def expire(self) -> float | None:
        """Wipe what is too old, and put some of what waits on the shelf; seconds until there is
        more to do, None where nothing is."""
        due = list[float | None]()
        if self._prefixes is not None:
            self._prefixes.expire()
            due.append(self._prefixes.next_expiry)
        if self._persisted is not None:
            due.append(self._persisted.work())
        return min((each for each in due if each is not None), default=None)

    def find(self, sequence: Sequence) -> None:
        """Begin with the pages of the prompt that are kept. At least its last token is read: its
        logits are what is asked for; all tokens are, where log-probabilities of the prompt are."""
        if not self.keeps or sequence.generation.request.prompt_logprobs:
            return
        tokens = sequence.todo[:-1]
        pages = [] if self._prefixes is None else self._prefixes.find(sequence.tenant, tokens)
        states = None if self._prefixes is None else self._prefixes.snapshots
        if self._seats.limits.stateful and states is None:
            pages = []  # nothing to begin with: there is no state at their end
        if states is not None and self._prefixes is not None:
            longest = states.longest(pages)
            end = min(len(tokens) // PAGE, self._prefixes.trees.share_of(sequence.tenant))  # pages that may be kept
            stops = {len(pages) * PAGE, end * PAGE}  # where texts parted, and where this one ends
            sequence.stops = sorted(stop for stop in stops if stop > longest * PAGE)
            pages = pages[:longest]
        self._seats.begin(sequence.slot, pages, states)
        if self._persisted is not None:
            sequence.restoring = self._persisted.find(sequence.tenant, tokens, len(pages))
        sequence.skip(len(pages) * PAGE)

    def pass_by(self, sequence: Sequence) -> None:
        """After a pass: note the state of an answer where its positions, without guesses, fill
        whole pages, and keep it where its prompt stopped for that."""
        if self.keeps and sequence.lanes is None:
            self._seats.mark(sequence.slot, sequence.position)
            if sequence.position in sequence.stops:
                self.keep(sequence, ended=False)

    def restore(self, sequences: list[Sequence], *, patient: bool = True) -> None:
        """Restore pages for the answers that wait for some, one each in turn. Where there is
        nothing else to do, a `patient` one waits for the next of them."""
        waiting = [each for each in sequences if each.restoring is not None]
        if not waiting:
            return
        own = Counter[str]()
        places = list[tuple[int, Sequence]]()
        for each in waiting:  # each tenant's first one comes before anybody's second
            places.append((own[each.tenant], each))
            own[each.tenant] += 1
        moving, left = [each for _, each in sorted(places, key=lambda place: place[0])][:RESTORING], BURST
        while moving and left > 0:
            left -= len(moving)
            moving = [each for each in moving if self._restore_page(each)]
        first = waiting[0].restoring
        if patient and left > 0 and first is not None and len(waiting) == len(sequences):
            first.wait(_PATIENCE)

    def keep(self, sequence: Sequence, *, ended: bool) -> None:
        """Keep the pages that an answer has filled, for its tenant. `ended`: its slot gives them
        back now."""
        if not self.keeps:
            return
        positions = sequence.position
        if sequence.lanes is not None:  # the rest differs by place, and a prompt may have been read in part only
            positions = min(positions, len(sequence.generation.prompt_ids))
        pages, tenant, text = self._seats.pages_below(sequence.slot, positions), sequence.tenant, sequence.text
        with contextlib.suppress(MemoryError):
            if self._prefixes is not None:
                last = self._prefixes.keep(tenant, text, pages, sequence.slot)
                if self._persisted is not None and last is not None:
                    self._persisted.later(tenant, last)
            elif self._persisted is not None and ended:
                self._persisted.put(tenant, text, pages, _PUTTING_SECONDS)

    @property
    def keeps(self) -> bool:
        """Whether texts are kept."""
        return self._prefixes is not None or self._persisted is not None

    def _restore_page(self, sequence: Sequence) -> bool:
        """Restore the next page of an answer; False where it has not come, or was the last."""
        coming, slot, position = sequence.restoring, sequence.slot, sequence.position
        if self._persisted is None or coming is None:
            return False
        opened = self._persisted.next_page(coming, lambda: self._seats.page_at(slot, position + coming.gained),
                                           lambda: self._seats.mark_of(slot))
        if opened and (coming.done or not coming.state):
            self._seats.extend(slot, position + coming.gained, state=coming.state)
            sequence.skip(coming.gained)
            coming.gained = 0
        if opened is False or coming.done:
            coming.drop()
            sequence.restoring = None
        if opened and coming.state and coming.done:
            self.keep(sequence, ended=False)
        return sequence.restoring is not None and opened is True
