"""The parts of an answer, from the engine to the wire: one union, each event with the index of its
choice.

    Text              characters of the answer, and how many of its tokens they came with
    Logprobs          log-probabilities of one token
    PromptLogprobs    the same of one token of the prompt
    End               why a choice ended; no event of it follows

Consumers match an event exhaustively (`assert_never`), so a new kind is a class here, and the type
checker names every place that has to say what becomes of it. Calls of tools are text here: the
service reads them by the model's format, and `delivery.channels` has the union with its events.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Reason = Literal["stop", "length", "cancelled", "failed"]
STOP: Reason = "stop"
LENGTH: Reason = "length"
CANCELLED: Reason = "cancelled"
FAILED: Reason = "failed"

ENTRY = struct.Struct("<id")  # a token, its log-probability


def _pack(entries: Iterable[tuple[int, float]]) -> bytes:
    """Pairs of a token and its log-probability, one after the other."""
    return b"".join(ENTRY.pack(*each) for each in entries)


@dataclass(frozen=True, slots=True)
class Text:
    """Complete characters; empty while a character or a possible stop string is undecided.

    `tokens` of the answer came with them: one, or none where the text was held back until the end.
    """

    choice: int
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """One token's entry, then those of its alternatives, the best first: packed, since many may
    wait for a client."""

    choice: int
    packed: bytes

    @classmethod
    def of(cls, choice: int, entries: Iterable[tuple[int, float]]) -> Logprobs:
        """Pack pairs of a token and its log-probability."""
        return cls(choice, _pack(entries))


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of one token of the prompt after its first, packed as an answer's are."""

    choice: int
    packed: bytes

    @classmethod
    def of(cls, choice: int, entries: Iterable[tuple[int, float]]) -> PromptLogprobs:
        """Pack pairs of a token and its log-probability."""
        return cls(choice, _pack(entries))


@dataclass(frozen=True, slots=True)
class End:
    """The end of a choice. `stop`: the place, in the request, of the stop string that ended it."""

    choice: int
    reason: Reason
    stop: int | None = None


Event = Text | Logprobs | PromptLogprobs | End
