"""Pages of keys and values that requests in progress may take, as far as it may be told.

The engine's own count depends on exact lengths, and on what is kept of earlier texts. This one is
of rounded lengths and of the longest course of an answer. A request counts until its answer has
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.forward.kvcache import pages_of
from appliance.service.admission.privacy import round_up


def pages_for(requests: Iterable[GenerationRequest], rounding: int, context: int) -> int:
    """The pages of all answers at their longest; prompts count as multiples of `rounding` tokens.
    """
    found = 0
    for each in requests:
        for prompt in (each.prompt_ids, each.negative_ids):
            positions = min(round_up(len(prompt), rounding) + each.max_tokens, context)
            found += pages_of(positions) if prompt else 0
    return found


class Claims:
    """The pages of requests in progress, by model."""

    def __init__(self) -> None:
        self._pages = Counter[str]()

    def add(self, model: str, pages: int) -> None:
        """Count pages in; a negative number counts them out."""
        self._pages[model] += pages

    def of(self, model: str) -> int:
        """The pages of a model's requests."""
        return self._pages[model]
