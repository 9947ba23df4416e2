"""The constraint of one answer while it decodes: guesses that it forces or allows, and masks ahead.

A pass gives logits for the next token and for each guess. The masks of all of these positions
follow from the answer and the guesses alone, so they are computed while the pass runs.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from appliance.constraint.walk import Walk
from appliance.errors import EngineError


class AnswerConstraint:
    """Used by one thread at a time: the engine's, or the thread for masks."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._ahead: deque[tuple[bytes | EngineError, int | None]] = deque()  # a mask, and the guess after it

    def forced_tokens(self, room: int) -> list[int]:
        """The next tokens that are certain, at most `room`."""
        tokens: list[int] = []
        try:
            walk = self._walk.ahead()
            while len(tokens) < room:
                more = walk.forced()[:room - len(tokens)]
                if not more or walk.prefix(more) < len(more):
                    break
                tokens += more
                if walk.ended:
                    break
            walk.back(len(tokens))
        except EngineError:  # the answer finds out at its own step
            return []
        return tokens

    def allowed_prefix(self, guesses: Iterable[int]) -> list[int]:
        """Guesses up to the first that the constraint bars."""
        try:
            some, walk = list(guesses), self._walk.ahead()
            count = walk.prefix(some)
            walk.back(count)
        except EngineError:
            return []
        return some[:count]

    def look_ahead(self, guesses: Sequence[int]) -> None:
        """Compute the masks of a pass: of the next token, and of the one after each guess."""
        self._ahead.clear()
        count = 0
        try:
            walk = self._walk.ahead()
            for guess in (*guesses, None):
                self._ahead.append((walk.mask(), guess))
                if guess is None or walk.prefix((guess,)) == 0:
                    break
                count += 1
            walk.back(count)
        except EngineError as error:
            self._ahead.append((error, None))
        except Exception:  # noqa: BLE001  in another thread, for one answer of a pass: no other may fail with it
            self._ahead.append((EngineError("the constraint failed", code="engine-internal"), None))

    def mask(self) -> bytes:
        """The mask of the next token. EngineError where the answer cannot go on."""
        mask = self._ahead[0][0] if self._ahead else self._walk.mask()
        if isinstance(mask, EngineError):
            raise mask
        return mask

    def end(self, token: int) -> None:
        """Take a token that ends the answer; EngineError where the constraint is not met then."""
        self._walk.accept(token)
        if not self._walk.may_end:
            raise EngineError("the answer ended before its constraint was met", code="constraint-stuck")

    def accept(self, token: int) -> bool:
        """Go on by a token; whether the answer is complete, and nothing can be added."""
        self._walk.accept(token)
        if self._ahead and self._ahead.popleft()[1] != token:
            self._ahead.clear()
        return self._walk.ended


class Masks:
    """A thread of its own that computes masks; it starts with the first constraint."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "masks")

    @contextlib.contextmanager
    def meanwhile(self, answers: Sequence[tuple[AnswerConstraint, Sequence[int]]]) -> Iterator[None]:
        """Compute the masks of a pass, of answers with their guesses, while the block runs."""
        def compute() -> None:
            for constrained, guesses in answers:
                constrained.look_ahead(guesses)
        future: Future[None] | None = None
        if answers:
            try:
                future = self._thread.submit(compute)
            except RuntimeError:  # no thread can be started
                compute()
        try:
            yield
        finally:
            if future is not None:
                future.result()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
