"""The pass of one size, for a cadence: dummy rows fill what answers leave of its rows and of its
logits.

A dummy row is computed like any other, in a seat that no answer has. It always has the same token,
so nothing of a text is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from appliance.engine.batch.plan import Plan
from appliance.kernels.runtime.boundary import BatchLimits

DUMMY_TOKEN = 0  # every vocabulary has it


@dataclass(frozen=True, slots=True)
class FixedPass:
    """The size of each pass. `seats`: slots for dummy rows, of `context` positions each."""

    rows: int
    logits: int
    seats: Sequence[int]
    context: int

    def within(self, limits: BatchLimits) -> BatchLimits:
        """The bounds of what answers may have of it."""
        return replace(limits, rows=self.rows, wanted=self.logits)

    def fill(self, plan: Plan) -> Plan:
        """Add dummy rows to a plan."""
        missing, logits = self.rows - len(plan.tokens), self.logits - len(plan.logit_rows)
        for seat in self.seats:
            count = min(missing, self.context)
            if count > 0:
                plan.add_rows(seat, 0, [DUMMY_TOKEN] * count, 0)
                missing -= count
        # Any row will do for logits that nobody reads: without dummy rows there are enough others.
        plan.logit_rows += range(self.rows - logits, self.rows)
        return plan
