"""How many rows of prompts a pass may have, by how long passes took. No bit of an answer depends on
it."""

from __future__ import annotations

from appliance.engine.batch.speculate import DENSE, PassCost

PROMPT_ROWS = 512  # of a pass when nobody waits for the next token
MIXED_PROMPT_ROWS = 128  # of a pass that also decodes: bounds how long prompts delay the others
LEAST_ROWS = 32  # of prompts in a pass, however slow the model
PROMPT_SECONDS = 0.5  # that a pass takes about: a request that comes meanwhile waits for its end
MIXED_SECONDS = 0.1  # and one in which somebody gets a token
LONG_ROWS, LEAST_LONG_ROWS = 6, 1  # of long prompts beside answers: before they are measured, and at least
FIRST_ROWS = 64  # of prompts beside answers before they are measured: where many clients begin at once, most are short
GAP_ROWS = 16  # of prompts beside answers, at least: a short prompt is soon read, however slow the model
OWN_PASSES = 3.0  # what a pass with a tenant's own prompts beside its answers takes, in passes of a single answer
MOST_PASSES = 4.0  # and with others' prompts, however many tenants there are
ALL_TIMES = 2.5  # of the time that long prompts have, for all: short ones need not wait for several passes
ROW_PART = 0.5  # of a mean row, that a prompt's takes at least beside many answers: their own time is known roughly
MANY_PART = 0.3  # of the time of many answers, which prompts have beside them at least
MEASURED_PASSES = 64  # with prompts beside answers, after which one without measures the answers anew
_MEMORY, _LOW_MEMORY = 0.8, 0.98  # weights of the past in what is measured, and in what rises above the least


class PassTime:
    """Seconds of passes, as measured."""

    def __init__(self, streamed: bool, pass_cost: PassCost = DENSE) -> None:
        """`streamed`: each pass reads weights anew, so that it costs much however few rows it has.
        """
        self._streamed, self._pass_cost = streamed, pass_cost
        self._rows_per_second = float(PROMPT_ROWS)
        self._decoding: float | None = None  # of a pass of one row, without prompts
        self._alone = 0.0  # the same where nothing else disturbs: the low of what was measured
        self._row: float | None = None  # of a prompt's row, beside answers that decode
        self._since = 0  # passes with prompts beside answers, since one without

    def record(self, decoding: int, prompts: int, seconds: float) -> None:
        """Learn from a pass with so many rows of answers, guesses included, and of prompts."""
        seconds = max(seconds, 1e-6)
        if decoding + prompts >= LEAST_ROWS:
            self._rows_per_second = (decoding + prompts) / seconds
        if not prompts:
            measured = seconds / self._pass_cost(decoding)
            self._alone = measured if self._decoding is None else _low(self._alone, measured)
            self._decoding, self._since = _mean(self._decoding, measured), 0
        elif decoding and self._decoding is not None:
            row = (seconds - self._decoding * self._pass_cost(decoding)) / prompts
            row = max(row, ROW_PART * (1 - 1 / decoding) * seconds / (decoding + prompts), 1e-6)
            self._row, self._since = _mean(self._row, row), self._since + 1

    def prompt_rows(self, mixed: bool, short: bool = False) -> int:
        """Most rows of prompts in the next pass.

        `mixed`: beside answers that decode; `short`: long prompts beside short ones. Where a pass
        streams its weights, fewer rows hardly make it shorter, and the prompt takes much longer.
        """
        if self._streamed and not mixed:
            return PROMPT_ROWS
        seconds, most = (MIXED_SECONDS, MIXED_PROMPT_ROWS) if mixed or short else (PROMPT_SECONDS, PROMPT_ROWS)
        return max(LEAST_ROWS, min(most, int(self._rows_per_second * seconds)))

    def long_rows(self, decoding: int, passes: float = OWN_PASSES) -> int:
        """Rows of long prompts beside `decoding` answers, so that each of them has a token in
        `passes` times the time of a single answer. None where that is to be measured."""
        if self._decoding is None or self._since >= MEASURED_PASSES:
            return 0
        if self._row is None:
            return LONG_ROWS
        return max(LEAST_LONG_ROWS, min(MIXED_PROMPT_ROWS, int(self._room(decoding, passes) / self._row)))

    def gap_rows(self, decoding: int, passes: float = OWN_PASSES) -> int:
        """Most rows of all prompts beside `decoding` answers: short ones have more time."""
        if self._decoding is None or self._row is None:
            return FIRST_ROWS
        return max(GAP_ROWS, int(self._room(decoding, passes, ALL_TIMES) / self._row))

    def _room(self, decoding: int, passes: float, times: float = 1.0) -> float:
        """Seconds of a pass that prompts may have: `times` what the answers leave of `passes`.
        Beside many answers it is a part of theirs, so that prompts go on; more would show in each
        of their gaps."""
        answers = (self._decoding or 0.0) * self._pass_cost(decoding)
        return max(times * (passes * self._alone - answers), MANY_PART * min(passes - 1, 1) * answers)


def _mean(past: float | None, new: float) -> float:
    return new if past is None else _MEMORY * past + (1 - _MEMORY) * new


def _low(past: float, new: float) -> float:
    """A mean that falls soon and rises late."""
    weight = _MEMORY if new < past else _LOW_MEMORY
    return weight * past + (1 - weight) * new
