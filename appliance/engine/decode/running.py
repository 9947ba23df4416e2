"""Answers in progress: the slot of each, what of its text is read, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from appliance.engine.decode.beams.lanes import Lanes
from appliance.engine.decode.generation import Generation
from appliance.engine.decode.speculate import Speculation
from appliance.engine.forward.persistence import Restoring


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


@dataclass(slots=True)
class Guide:
    """The negative prompt of an answer, and the answer after it, in a slot of its own. It is read
    before the prompt is; then it has a row beside each row of the answer that has logits."""

    slot: int
    todo: list[int]  # of the negative prompt without its last token
    next: int  # the token of its next row beside the answer's
    tenant: str
    position: int = 0
    cached: int = 0  # none of its pages are kept


@dataclass(slots=True)
class Running:
    """An answer in a slot. `todo`: tokens whose keys and values are not in the cache yet. `cached`:
    tokens of the prompt whose were there at the start."""

    generation: Generation
    slot: int
    todo: list[int]
    position: int = 0
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None
    tenant: str = ""
    guide: Guide | None = None
    lanes: Lanes | None = None  # of a beam search; all live texts have `position` positions
    cached: int = 0
    found: int = 0  # tokens of the prompt that were not read, also once they are dropped
    dropped: int = 0  # tokens that no longer are in the context, see `Batcher._shift`
    restoring: Restoring | None = None  # pages of the prompt that are about to come from a shelf

    @property
    def text(self) -> list[int]:
        """The tokens in its context, of the prompt and of the answer."""
        whole, keep = [*self.generation.prompt_ids, *self.generation.tokens], self.generation.request.shift_keep or 0
        return whole[:keep] + whole[keep + self.dropped:]

    @property
    def forks(self) -> bool:
        """Whether the prompts are there for other answers to them."""
        read = self.position >= self.generation.kept and (self.guide is None or not self.guide.todo)
        return read and not self.dropped

    @property
    def places(self) -> int:
        """Rows that it has in a pass for each token."""
        return self.generation.places

    @property
    def reading(self) -> Running | Guide:
        """The part whose prompt is read next."""
        return self.guide if self.guide is not None and self.guide.todo else self

    @property
    def decoding(self) -> bool:
        """Whether the next pass gives a token of the answer after the first."""
        return len(self.todo) == 1 and self.position > 0
