"""A compiled constraint, and the way of one answer through it.

llguidance fails open: where it cannot go on, its mask allows the end of the answer, as if all were
well. Each step here therefore asks for its error first, and an answer that cannot go on fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from appliance.constraint import room
from appliance.errors import EngineError

_NOT_TAKEN_BACK = ("max_tokens", "stop")
"""Attributes of a rule: llguidance takes back no token of a grammar that has one."""

_OWN_END = ("NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence")


class Constraint:
    """A constraint that many answers may share, at the same time."""

    def __init__(self, matcher: Any, vocabulary: int, text: str = "") -> None:
        """`text`: the grammar that it was compiled from."""
        self.text = text
        self._matcher, self._mask_nbytes = matcher, -(-vocabulary // 32) * 4
        self.spoiled = False
        """Whether an answer found a limit. Answers share what they learn about the lexer, up to that limit, so
        whoever keeps constraints should compile this one anew."""

    def begin(self) -> Walk:
        """The start of an answer; takes microseconds."""
        kept = any(word in self.text for word in _NOT_TAKEN_BACK)
        return Walk(self._matcher.deep_copy(), self._mask_nbytes, self._spoil, kept=kept)

    def _spoil(self) -> None:
        self.spoiled = True


class Walk:
    """The state of one answer. Not safe to use from two threads at once."""

    def __init__(self, matcher: Any, mask_nbytes: int, spoil: Callable[[], None], *, kept: bool = False) -> None:
        """`kept`: no token is taken back."""
        self._matcher, self._mask_nbytes, self._spoil, self._kept = matcher, mask_nbytes, spoil, kept

    def ahead(self) -> Walk:
        """Return what goes on by guesses, until `back`: this walk, or a copy where none is taken
        back."""
        return Walk(self._matcher.deep_copy(), self._mask_nbytes, self._spoil, kept=True) if self._kept else self

    def mask(self) -> bytes:
        """A bit for each token of the vocabulary, the first in the lowest bit of the first byte,
        filled up to whole words of 32: may it come next? Tokens that end an answer may, exactly
        where the constraint is met.

        EngineError where the constraint allows nothing, or costs more than its limits; with the
        code "constraint-no-room" where memory is too short for any.
        """
        if not room.is_there(room.STEP):
            raise EngineError("there is no memory for a constraint's mask", code="constraint-no-room",
                              hint="the policy's memory_budget leaves too little")
        found: bytes = self._matcher.compute_bitmask()
        self._check()
        return found[:self._mask_nbytes]

    def accept(self, token: int) -> None:
        """Go on by a token; EngineError where it is not allowed."""
        self._matcher.consume_token(token)
        self._check()

    def prefix(self, tokens: Sequence[int]) -> int:
        """Go on by tokens as long as they are allowed; how many were."""
        count: int = self._matcher.try_consume_tokens(list(tokens))
        self._check()
        return count

    def back(self, count: int) -> None:
        """Take back the last so many tokens, of a walk that `ahead` returned."""
        if not self._kept:
            self._matcher.rollback(count)
            self._check()

    def forced(self) -> list[int]:
        """The next tokens, as far as there is no choice: the mask allows nothing else there."""
        found: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return found

    @property
    def may_end(self) -> bool:
        """Whether the answer meets the constraint as it is."""
        return bool(self._matcher.is_accepting())

    @property
    def ended(self) -> bool:
        """Whether the answer meets the constraint, and nothing can be added."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        """EngineError where llguidance cannot go on; its own message has words of the answer."""
        if self._matcher.is_error() or self._matcher.stop_reason() not in _OWN_END:
            self._spoil()
            raise EngineError("the answer cannot go on within its constraint", code="constraint-stuck",
                              hint="the schema or grammar allows nothing here, or costs more than the limits; make it "
                                   "simpler")
