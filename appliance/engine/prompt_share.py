"""How prompts in progress share the rows of a pass: tenants share equally, then the prompts of each tenant.

Counts of rows decide here, never a clock. No bit of an answer depends on the result.

    short   prompts with few rows left come first, in up to half of the rows
    rest    goes to the tenants who have read the least; of a tenant's rows one half goes to
            its prompts that have read the least, the other half to its oldest prompt

So a short prompt is soon answered, every prompt goes on, and long prompts of one tenant are done
one after the other rather than all at the end.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Protocol

SHORT_ROWS = 64  # a prompt with so many rows left, or fewer, comes first; also the most rows for such prompts


class Prompt(Protocol):
    """A prompt that is being read."""

    @property
    def tenant(self) -> str:
        """Whose prompt it is."""
        ...

    @property
    def position(self) -> int:
        """Rows that were read."""
        ...

    @property
    def todo(self) -> Sequence[int]:
        """Tokens whose rows are to be read."""
        ...


def is_short(prompt: Prompt) -> bool:
    """Whether few rows of a prompt are left."""
    return len(prompt.todo) <= SHORT_ROWS


def level(room: int, wants: Sequence[int], have: Sequence[int]) -> list[int]:
    """Divide `room` rows so that those who have the least catch up; nobody gets more than wanted."""
    if sum(wants) <= room:
        return list(wants)

    def up_to(mark: int) -> list[int]:
        return [min(want, max(0, mark - had)) for want, had in zip(wants, have, strict=True)]

    marks = range(min(have), max(have) + max(wants) + 1)
    mark = marks[bisect.bisect_right(marks, room, key=lambda mark: sum(up_to(mark))) - 1]
    given = up_to(mark)
    for index in range(len(given)):  # less than one row for each
        if sum(given) < room and given[index] < wants[index] and have[index] + given[index] == mark:
            given[index] += 1
    return given


def first(room: int, wants: Sequence[int], order: Sequence[int]) -> list[int]:
    """Divide `room` rows in an order of indices: each gets all it wants while there are any."""
    given = [0] * len(wants)
    for index in order:
        given[index] = min(room, wants[index])
        room -= given[index]
    return given


class PromptShare:
    """Remembers what each tenant with prompts in progress has read."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}  # rows by tenant, from the least of the others at its first prompt on
        self._odd = 0  # changes with each pass: whose the odd row is

    def rows(self, prompts: Sequence[Prompt], room: int, long_room: int | None = None) -> list[int]:
        """Rows of the next pass for each of `prompts`, which are given oldest first: `room` in all.

        `long_room` bounds the rows of long prompts, unless short ones take more than that.
        """
        if not prompts:
            self._read = {}
            return []
        self._odd ^= 1
        least = min((self._read[tenant] for tenant in self._read.keys() & {each.tenant for each in prompts}), default=0)
        self._read = {each.tenant: self._read.get(each.tenant, least) for each in prompts}
        given = self._short(prompts, min(SHORT_ROWS, (room + self._odd) // 2))
        used = sum(given)
        rest = room - used if long_room is None else min(room - used, max(long_room, used))
        return self._rest(prompts, given, rest)

    def _short(self, prompts: Sequence[Prompt], room: int) -> list[int]:
        """Rows for short prompts: the same for each tenant, the shortest first."""
        wants = [len(each.todo) if is_short(each) else 0 for each in prompts]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].todo))
        given = [0] * len(prompts)
        for tenant, share in self._shares(prompts, wants, room, dict.fromkeys(self._read, 0)).items():
            own = [index for index in order if prompts[index].tenant == tenant]
            self._give(given, own, first(share, [wants[index] for index in own], range(len(own))))
            self._read[tenant] += share
        return given

    def _rest(self, prompts: Sequence[Prompt], given: list[int], room: int) -> list[int]:
        """Rows for all prompts beside those that are `given`."""
        wants = [len(each.todo) - had for each, had in zip(prompts, given, strict=True)]
        for tenant, share in self._shares(prompts, wants, room, self._read).items():
            own = [index for index, each in enumerate(prompts) if each.tenant == tenant]
            fair = level((share + self._odd) // 2, [wants[index] for index in own],
                         [prompts[index].position + given[index] for index in own])
            left = [wants[index] - rows for index, rows in zip(own, fair, strict=True)]
            self._give(given, own, fair)
            self._give(given, own, first(share - sum(fair), left, range(len(own))))
            self._read[tenant] += share
        return given

    def _shares(self, prompts: Sequence[Prompt], wants: Sequence[int], room: int,
                have: dict[str, int]) -> dict[str, int]:
        """Rows for each tenant."""
        tenants = sorted(self._read, key=lambda tenant: self._read[tenant])
        sums = [sum(want for each, want in zip(prompts, wants, strict=True) if each.tenant == tenant)
                for tenant in tenants]
        return dict(zip(tenants, level(room, sums, [have[tenant] for tenant in tenants]), strict=True))

    @staticmethod
    def _give(given: list[int], indices: Sequence[int], rows: Sequence[int]) -> None:
        for index, more in zip(indices, rows, strict=True):
            given[index] += more
