"""How many rows of prompts a pass may have, by how long passes took. No bit of an answer depends on
it."""

from __future__ import annotations

from appliance.engine.decode.speculate import pass_cost

PROMPT_ROWS = 512  # of a pass when nobody waits for the next token
MIXED_PROMPT_ROWS = 128  # of a pass that also decodes: bounds how long prompts delay the others
LEAST_ROWS = 32  # of prompts in a pass, however slow the model
PROMPT_SECONDS = 0.5  # that a pass takes about: whoever comes meanwhile waits for its end
MIXED_SECONDS = 0.1  # and one in which somebody gets a token
LONG_ROWS, LEAST_LONG_ROWS = 6, 2  # of long prompts beside answers: before they are measured, and at least
GAP_ROWS = 16  # of prompts beside answers, at least: a short prompt is soon read, however slow the model
GAP_PASSES = 3  # that a pass with prompts beside answers takes at most, in passes without, beyond these rows
MEASURED_PASSES = 64  # with prompts beside answers, after which one without measures the answers anew
_MEMORY = 0.8  # weight of the past in what is measured


class PassTime:
    """Seconds of passes, as measured."""

    def __init__(self, streamed: bool) -> None:
        """`streamed`: each pass reads weights anew, so that it costs much however few rows it has.
        """
        self._streamed = streamed
        self._rows_per_second = float(PROMPT_ROWS)
        self._decoding: float | None = None  # of a pass of one row, without prompts
        self._row: float | None = None  # of a prompt's row, beside answers that decode
        self._since = 0  # passes with prompts beside answers, since one without

    def record(self, decoding: int, prompts: int, seconds: float) -> None:
        """Learn from a pass with so many rows of answers, guesses included, and of prompts."""
        seconds = max(seconds, 1e-6)
        if decoding + prompts >= LEAST_ROWS:
            self._rows_per_second = (decoding + prompts) / seconds
        if not prompts:
            self._decoding, self._since = _mean(self._decoding, seconds / pass_cost(decoding)), 0
        elif decoding and self._decoding is not None:
            more = max(seconds - self._decoding * pass_cost(decoding), 1e-6)
            self._row, self._since = _mean(self._row, more / prompts), self._since + 1

    def prompt_rows(self, mixed: bool, short: bool = False) -> int:
        """Most rows of prompts in the next pass.

        `mixed`: beside answers that decode; `short`: long prompts beside short ones. Where a pass
        streams its weights, fewer rows hardly make it shorter, and the prompt takes much longer.
        """
        if self._streamed and not mixed:
            return PROMPT_ROWS
        seconds, most = (MIXED_SECONDS, MIXED_PROMPT_ROWS) if mixed or short else (PROMPT_SECONDS, PROMPT_ROWS)
        return max(LEAST_ROWS, min(most, int(self._rows_per_second * seconds)))

    def long_rows(self, decoding: int) -> int:
        """Rows of long prompts beside `decoding` answers: as many as make a pass about twice as
        long as without. None where that is to be measured."""
        if self._decoding is None or self._since >= MEASURED_PASSES:
            return 0
        if self._row is None:
            return LONG_ROWS
        return max(LEAST_LONG_ROWS, min(MIXED_PROMPT_ROWS, int(self._decoding * pass_cost(decoding) / self._row)))

    def gap_rows(self, decoding: int) -> int:
        """Most rows of prompts beside `decoding` answers, so that their gaps stay within
        `GAP_PASSES` of those that they have alone."""
        if self._decoding is None or self._row is None:
            return MIXED_PROMPT_ROWS
        return max(GAP_ROWS, int((GAP_PASSES - 1) * self._decoding * pass_cost(decoding) / self._row))


def _mean(past: float | None, new: float) -> float:
    return new if past is None else _MEMORY * past + (1 - _MEMORY) * new
