"""An answer's shape whose texts are put in last: see `oblivious.answers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from appliance.api.answers import AnswerPart, CompletionUsage, Finish
from appliance.api.problems import RequestError
from appliance.api.shapes import AnswerShape
from appliance.oblivious import AnswerTexts

_AT_ONCE = 4096  # bytes that are filled at once


@dataclass(frozen=True)
class FilledShape:
    """Writes as another shape does, with texts in the place of their stand-ins."""

    shape: AnswerShape
    texts: AnswerTexts

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed."""
        held = b""
        for piece in self.shape.whole(parts, ends, usage):
            held += piece  # never a text by itself: the interpreter shares bytes objects of one byte
            if len(held) >= _AT_ONCE:
                yield self.texts.fill(held)
                held = b""
        yield self.texts.fill(held)

    def opened(self, choices: int) -> bytes:
        """Return the events before any text."""
        return self.shape.opened(choices)

    def more(self, parts: Sequence[AnswerPart], *, paced: bool = False) -> bytes:
        """Return the events for more of some choices."""
        return self.texts.fill(self.shape.more(parts, paced=paced))

    def ended(self, ends: Mapping[int, Finish], usage: CompletionUsage | None) -> bytes:
        """Return the last events."""
        return self.texts.fill(self.shape.ended(ends, usage))

    def failed(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which cannot go on."""
        return self.shape.failed(error)
