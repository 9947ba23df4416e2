"""An answer in progress: the text of its slot, how much is read, and when.

    RESTORING    pages of its prompt are about to come from a shelf
    READING      tokens of its prompt are to be read
    DECODING     each pass gives it a token
    ENDED        it is to be taken out
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field

from appliance.engine.batch.strand import Lanes, Strand
from appliance.engine.decode.generation import Generation
from appliance.engine.forward.persistence import Restoration


class Phase(enum.Enum):
    """The next work of a sequence."""

    RESTORING = enum.auto()
    READING = enum.auto()
    DECODING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class Timings:
    """Seconds on the monotonic clock."""

    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0

    def tick(self) -> None:
        """Record a token."""
        self.last_token = time.monotonic()
        if self.first_token is None:
            self.first_token = self.last_token
        self.tokens += 1

    @property
    def prompt_seconds(self) -> float:
        """From the start to the first token."""
        return 0.0 if self.first_token is None else self.first_token - self.started

    @property
    def token_seconds(self) -> float:
        """Mean time of a token after the first."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return 0.0
        return (self.last_token - self.first_token) / (self.tokens - 1)


@dataclass(slots=True, kw_only=True)
class Guide(Strand):
    """The negative prompt of an answer, and the answer after it. It is read before the prompt is;
    then it has a row beside each row of the answer that has logits."""

    next: int  # the token of its next row beside the answer's


@dataclass(slots=True, kw_only=True)
class Sequence(Strand):
    """An answer in a slot, after its prompt."""

    generation: Generation
    timings: Timings = field(default_factory=Timings)
    guide: Guide | None = None
    lanes: Lanes | None = None  # of a beam search; all live texts have `position` positions
    stateful: bool = False  # layers keep a state, which cannot go back to the end of the prompt
    noted: bool = False  # its state is noted at the ends of pages
    found: int = 0  # tokens of the prompt that were not read, also once they are dropped
    dropped: int = 0  # tokens that no longer are in the context, see `shift`
    restoring: Restoration | None = None  # pages of the prompt that are about to come from a shelf

    @property
    def phase(self) -> Phase:
        """Its next work."""
        if self.generation.finished:
            return Phase.ENDED
        if self.restoring is not None:
            return Phase.RESTORING
        read = len(self.todo) == 1 and self.position > 0 and self.reading is self
        return Phase.DECODING if read else Phase.READING

    @property
    def text(self) -> list[int]:
        """The tokens in its context, of the prompt and of the answer."""
        whole, keep = [*self.generation.prompt_ids, *self.generation.tokens], self.generation.request.shift_keep or 0
        return whole[:keep] + whole[keep + self.dropped:]

    @property
    def slots(self) -> list[int]:
        """All its slots."""
        own = [self.slot] if self.lanes is None else [*self.lanes.slots]
        return own if self.guide is None else [self.guide.slot, *own]

    @property
    def forks(self) -> bool:
        """Whether the prompts are there for other answers to them."""
        read = self.position >= self.generation.shared_positions and (self.guide is None or not self.guide.todo)
        return read and not self.dropped and not self.stateful

    @property
    def places(self) -> int:
        """Rows with logits that it has in a pass for each token."""
        return self.generation.places

    @property
    def reading(self) -> Strand:
        """The part whose prompt is read next."""
        return self.guide if self.guide is not None and self.guide.todo else self

    def skip(self, positions: int) -> None:
        """Note that the next so many tokens of the prompt need not be read: their pages are there.
        """
        self.position += positions
        self.cached += positions
        self.found += positions
        del self.todo[:positions]

    def shift(self, context: int) -> None:
        """Drop the older half of a full context, but for its first tokens, and read again what
        stays, from position 0 on: the same bits as a prompt of that text has."""
        keep = self.generation.request.shift_keep or 0
        self.dropped += (context - keep) // 2
        self.todo, self.position, self.cached = self.text, 0, 0
