"""The news of answers on their way to requests. Under a cadence it waits for the next multiple of
the interval.

Where guesses are hidden, one token of an answer leaves at each multiple, as if there had been none.
An answer that follows another of its request in the same slot waits until that has left: without
guesses it would begin then.

Used by the engine's thread.
"""

from __future__ import annotations

from collections import deque

from appliance.engine.decode.generation import Advance
from appliance.engine.handle import Handle
from appliance.errors import EngineError, ModelError

NOWHERE = -1  # the slot of an answer that has none


class Deliveries:
    """The advances, errors and ends that have not been delivered."""

    def __init__(self, *, held: bool, singly: bool) -> None:
        """`held`: until `release`; `singly`: a token of each answer at a time."""
        self._held, self._singly = held, singly
        self._lines: dict[tuple[int, int], tuple[Handle, deque[Advance]]] = {}  # by request and slot
        self._ends: list[tuple[Handle, EngineError | ModelError | None]] = []

    def put(self, handle: Handle, slot: int, advance: Advance) -> None:
        """Deliver what an answer in a slot got."""
        if not self._held:
            _deliver(handle, advance)
            return
        self._lines.setdefault((id(handle), slot), (handle, deque()))[1].append(advance)

    def end(self, handle: Handle) -> None:
        """Let a request end, after all that was put for it."""
        if self._held:
            self._ends.append((handle, None))
        else:
            handle.end()

    def fail(self, handle: Handle, error: EngineError | ModelError) -> None:
        """Let a request end with an error, in the place of what was put for it."""
        if not self._held:
            handle.fail(error)
            return
        self._lines = {key: line for key, line in self._lines.items() if line[0] is not handle}
        self._ends.append((handle, error))

    def release(self, *, everything: bool = False) -> None:
        """Deliver what is due at a multiple, or `everything`."""
        for key, (handle, advances) in list(self._lines.items()):
            while advances:
                advance = advances.popleft()
                _deliver(handle, advance)
                if self._singly and _is_a_step(advance) and not (everything or handle.cancelled):
                    break
            if not advances:
                del self._lines[key]
        waiting = {id(handle) for handle, _ in self._lines.values()}
        ends, self._ends = self._ends, []
        for handle, error in ends:
            if id(handle) in waiting:
                self._ends.append((handle, error))
            elif error is None:
                handle.end()
            else:
                handle.fail(error)


def _deliver(handle: Handle, advance: Advance) -> None:
    """Report what an answer got. A request whose callback raises is cancelled."""
    if not handle.deliver(advance) and advance.finish_reason is None:
        handle.cancel()


def _is_a_step(advance: Advance) -> bool:
    """Whether a pass without guesses gives an answer no more than this."""
    return advance.token is not None or advance.finish_reason is not None
