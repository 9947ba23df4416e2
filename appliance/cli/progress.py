"""The progress of a build: a bar on a terminal, lines elsewhere; never silent for long."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tqdm import tqdm

if TYPE_CHECKING:
    from appliance.imaging.recipe.stages import Step

EVERY_SECONDS = 10.0


class Progress:
    """Progress of a build, on standard error; steps that ended go to standard output."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: say nothing of steps that ended."""
        self._bar, self._quiet = tqdm(unit="", disable=None, leave=False), quiet
        self._told = time.monotonic()  # when a line was written last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.close()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show how far a step is; `total` is 0 where nobody knows."""
        if not self._bar.disable:
            self._bar.set_description_str(step, refresh=False)
            self._bar.total, self._bar.n = total or None, done
            self._bar.refresh()
        elif time.monotonic() - self._told >= EVERY_SECONDS:
            self._told = time.monotonic()
            print(f"  {step}" + (f"  {done} of {total}" if total else ""), file=sys.stderr, flush=True)

    def begin(self, step: str) -> None:
        """Say at once that a step begins which tells nothing until it has ended."""
        self._told = -EVERY_SECONDS
        self(step, 0, 0)

    def ended(self, step: Step) -> None:
        """Say that a step has ended, and what came of it."""
        self._told = time.monotonic()
        if not self._quiet:
            tqdm.write(f"  {step.name:<14}{step.seconds:7.1f} s  {step.detail}")
            sys.stdout.flush()
