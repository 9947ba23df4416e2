"""Stop strings: cut an answer before the first of them, wherever token borders fall.

Text that could be the beginning of a stop string is held back until the next text decides, so no
part of a stop string is ever passed on. Which stop string ends first decides, so the cut does not
depend on how text arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import EngineError

MAX_STOPS = 16
MAX_LENGTH = 256  # characters of one stop string


class StopFilter:
    """Feed text with `push`; pass on what it returns until `stopped`."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if len(stops) > MAX_STOPS or any(not 0 < len(stop) <= MAX_LENGTH for stop in stops):
            raise EngineError(f"stop strings out of range; allowed: {MAX_STOPS} of 1..{MAX_LENGTH} characters")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        self.found: int | None = None  # the place of the stop string that was found

    def push(self, text: str) -> str:
        """The text that can be passed on now; nothing after a stop string was found."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        text = self._held + text
        ends = [(start + len(stop), start, place) for place, stop in enumerate(self._stops)
                if (start := text.find(stop)) >= 0]
        if ends:
            _end, start, self.found = min(ends)
            self.stopped, self._held = True, ""
            return text[:start]
        keep = self._undecided(text)
        self._held = text[len(text) - keep:]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Release what is held back, when no more text will come."""
        text, self._held = self._held, ""
        return text

    def _undecided(self, text: str) -> int:
        """Characters at the end of `text` that are a proper beginning of some stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        for count in range(longest, 0, -1):
            tail = text[-count:]
            if any(stop.startswith(tail) for stop in self._stops):
                return count
        return 0
