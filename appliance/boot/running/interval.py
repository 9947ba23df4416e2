"""The interval of a policy's `cadence`: how many rows a pass may have so that this machine holds
it, as measured before anybody is answered.

The dearest pass counts: every answer, and every prompt, at the end of a full context. The passes of
models that may be loaded at the same time share the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.boot.planning.footprint import keeps_cadence
from appliance.engine.engine import Engine
from appliance.errors import BootError
from appliance.policy import Policy

PART = 0.75  # of an interval that passes take, with the choice of tokens; disturbances are borne in the rest


@dataclass(frozen=True, slots=True)
class Interval:
    """The time from one pass to the next, and the models that share it."""

    seconds: float
    models: int = 1

    @property
    def allowed(self) -> float:
        """Seconds of it that a pass of one model may take."""
        return PART * self.seconds / self.models

    def least(self, pass_seconds: float) -> int:
        """Milliseconds of the shortest interval that holds such a pass."""
        return math.ceil(1000 * pass_seconds * self.models / PART)

    def hold(self, name: str, engine: Engine) -> None:
        """Give all passes of an engine as many rows as the interval holds. BootError where it does
        not hold the fewest."""
        least, most = engine.row_bounds
        taken = engine.pass_seconds(least)
        if taken > self.allowed:
            raise BootError(f"model {name}: {self.refusal(taken, least)}", code="cadence", hint=self.hint(taken))
        engine.fix(self._most(engine, least, most))

    def refusal(self, pass_seconds: float, rows: int) -> str:
        """Why it does not hold passes that take so long."""
        shared = f", and {self.models} models share it" if self.models > 1 else ""
        return (f"a pass of {rows} rows, one for each of {rows - 1} answers and one for a prompt, takes "
                f"{1000 * pass_seconds:.1f} ms where contexts are full; cadence is {1000 * self.seconds:g} ms{shared}: "
                f"it allows {1000 * self.allowed:.1f} ms")

    def hint(self, pass_seconds: float) -> str:
        """How to have passes that take so long."""
        return (f'write cadence = "{self.least(pass_seconds)}ms" or more, or lower limits.concurrent_requests, '
                "limits.prompt_tokens or the model's context_length")

    def _most(self, engine: Engine, least: int, most: int) -> int:
        """The most rows that it holds, roughly: each further trial has half as many more."""
        held, tried = least, least
        while held < most:
            tried = min(held + held // 2 + 1, most)
            if engine.pass_seconds(tried) > self.allowed:
                break
            held = tried
        between = (held + tried) // 2
        return between if between > held and engine.pass_seconds(between) <= self.allowed else held


def interval_of(policy: Policy) -> Interval | None:
    """The interval of a policy; None where passes follow as fast as they go."""
    padding = policy.privacy.timing_padding
    if padding is None or not keeps_cadence(policy):
        return None
    return Interval(padding.cadence_ms / 1000, len(policy.models))
