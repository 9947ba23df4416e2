"""How prompts in progress share the rows of a pass: tenants share by weight, then the prompts of
each tenant.

Counts of rows decide here, never a clock. No bit of an answer depends on the result.

    short   prompts with few rows left come first, in up to 7/8 of the rows, and up to 64
    rest    goes to the tenants who have read the least for their weight; of a tenant's rows one
            third goes to its prompts that have read the least, the others to its oldest long prompt

So a short prompt is soon answered, every prompt goes on, and long prompts of one tenant are done
one after the other rather than all at the end. A row of a long prompt takes longer than one of a
chat: by time about half is for each.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

from appliance.engine.batch.pass_time import MOST_PASSES, OWN_PASSES
from appliance.engine.batch.strand import Strand

Own = Mapping[str, Sequence[int]]
SHORT_PARTS = 7  # of eight: the most rows for short prompts
LONG_ROWS = 256  # a prompt of more rows is long: it may wait for others of its kind, and the oldest has most rows
LEAST_READ_PARTS, OLDEST_PARTS = 1, 2  # of a tenant's rows, where it has a long prompt
SHORT_ROWS = 64  # a prompt with so many rows left, or fewer, comes first; also the most rows for such prompts


def is_short(prompt: Strand) -> bool:
    """Whether few rows of a prompt are left. One of which a part was cached is long: nobody's turn
    depends on what is kept, since an earlier text of the same tenant would show."""
    return len(prompt.todo) + prompt.cached <= SHORT_ROWS


def is_long(prompt: Strand) -> bool:
    """Whether a prompt is longer than a chat's usual turn, however much of it was read."""
    return prompt.position + len(prompt.todo) > LONG_ROWS


def level(room: int, wants: Sequence[int], have: Sequence[int], weights: Sequence[int] | None = None) -> list[int]:
    """Divide `room` rows so that whoever has the least for its weight catches up; nobody gets
    more than wanted. Weights are 1 where none are given."""
    if sum(wants) <= room:
        return list(wants)
    weights = [1] * len(wants) if weights is None else weights

    def up_to(mark: int) -> list[int]:
        return [min(want, max(0, mark * weight - had)) for want, had, weight in zip(wants, have, weights, strict=True)]

    marks = range(min(had // weight for had, weight in zip(have, weights, strict=True)),
                  max(have) + max(wants) + 1)
    mark = marks[bisect.bisect_right(marks, room, key=lambda mark: sum(up_to(mark))) - 1]
    shares = up_to(mark)
    rest = room - sum(shares)  # less than one more for each unit of weight
    for index, weight in enumerate(weights):
        more = min(rest, wants[index] - shares[index], max(0, (mark + 1) * weight - have[index] - shares[index]))
        shares[index] += more
        rest -= more
    return shares


class PromptShare:
    """Remembers what each tenant with prompts in progress has read."""

    def __init__(self, weights: Mapping[str, int] | None = None) -> None:
        """`weights` of tenants; 1 for a tenant that is not there."""
        self._weights = {} if weights is None else dict(weights)
        self._read: dict[str, int] = {}  # rows by tenant, from the least of the others at its first prompt on
        self._odd = 0  # changes with each pass: whose the odd row is
        self._owed: dict[str, int] = {}  # thirds of a row, by tenant, that its least read prompts did not get yet

    def rows(self, prompts: Sequence[Strand], room: int, long_room: int | None = None) -> list[int]:
        """Rows of the next pass for each of `prompts`, which are given oldest first: `room` in all.

        `long_room` bounds the rows of long prompts, unless short ones take more than that.
        """
        own: dict[str, list[int]] = {}  # indices of each tenant's prompts, oldest first
        for index, each in enumerate(prompts):
            own.setdefault(each.tenant, []).append(index)
        self._odd ^= 1
        least = min((self._read[tenant] // self._weight(tenant) for tenant in self._read.keys() & own.keys()),
                    default=0)
        self._read = {tenant: self._read.get(tenant, least * self._weight(tenant)) for tenant in own}
        self._owed = {tenant: self._owed[tenant] for tenant in self._owed.keys() & own.keys()}
        shares = [0] * len(prompts)
        self._short(prompts, own, shares, min(SHORT_ROWS, SHORT_PARTS * (room + self._odd) // (SHORT_PARTS + 1)))
        short_rows = sum(shares)
        rest = room - short_rows if long_room is None else min(room - short_rows, max(long_room, short_rows))
        self._rest(prompts, own, shares, rest)
        return shares

    def passes(self, answering: Sequence[str], reading: Sequence[str]) -> float:
        """The time of a pass beside answers, in passes of a single answer. A tenant with an
        answer keeps a share of the time by weight, among all tenants that have work."""
        tenants = {*answering, *reading}
        if len(tenants) < 2 or not answering:
            return OWN_PASSES
        return min(sum(map(self._weight, tenants)) / max(map(self._weight, answering)), MOST_PASSES)

    def _short(self, prompts: Sequence[Strand], own: Own, shares: list[int], room: int) -> None:
        """Give rows to short prompts: by weight for each tenant, the shortest first."""
        wants = [len(each.todo) if is_short(each) else 0 for each in prompts]
        for tenant, share in self._shares(own, wants, room, dict.fromkeys(own, 0)).items():
            self._give(shares, sorted(own[tenant], key=lambda index: len(prompts[index].todo)), wants, share)
            self._read[tenant] += share

    def _rest(self, prompts: Sequence[Strand], own: Own, shares: list[int], room: int) -> None:
        """Give more rows to all prompts."""
        wants = [len(each.todo) - had for each, had in zip(prompts, shares, strict=True)]
        for tenant, share in self._shares(own, wants, room, self._read).items():
            indices = own[tenant]
            long = [index for index in indices if is_long(prompts[index])]
            equal = self._equal(tenant, share) if long else share
            fair = level(equal, [wants[index] for index in indices],
                         [prompts[index].position - prompts[index].cached + shares[index] for index in indices])
            for index, rows in zip(indices, fair, strict=True):
                shares[index] += rows
                wants[index] -= rows
            others = [index for index in indices if index not in long]
            self._give(shares, [*long, *others], wants, share - sum(fair))
            self._read[tenant] += share

    def _equal(self, tenant: str, share: int) -> int:
        """The rows of a tenant's share for its least read prompts: a part of it, over passes.
        So short prompts go on even where long ones have one row at a time."""
        owed = self._owed.get(tenant, 0) + share * LEAST_READ_PARTS
        equal, self._owed[tenant] = divmod(owed, LEAST_READ_PARTS + OLDEST_PARTS)
        return equal

    def _shares(self, own: Own, wants: Sequence[int], room: int, have: Mapping[str, int]) -> dict[str, int]:
        """Rows for each tenant."""
        tenants = sorted(own, key=lambda tenant: self._read[tenant] / self._weight(tenant))
        sums = [sum(wants[index] for index in own[tenant]) for tenant in tenants]
        shares = level(room, sums, [have[tenant] for tenant in tenants], [self._weight(tenant) for tenant in tenants])
        return dict(zip(tenants, shares, strict=True))

    def _weight(self, tenant: str) -> int:
        return self._weights.get(tenant, 1)

    @staticmethod
    def _give(shares: list[int], order: Sequence[int], wants: Sequence[int], room: int) -> None:
        """Give each prompt, in an order that has it once, the rows it wants while any are left."""
        for index in order:
            rows = min(room, wants[index])
            shares[index] += rows
            room -= rows
