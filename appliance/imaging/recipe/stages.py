"""Named steps with progress and timings: the frame of a build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from appliance.errors import ApplianceError, ImageError

Progress = Callable[[str, int, int], None]
"""Called with a step's name, how much is done, and how much there is (0: not known)."""


def quiet(_step: str, _done: int, _total: int) -> None:
    """A `Progress` that shows nothing."""


@dataclass(frozen=True)
class Step:
    """A step that ended."""

    name: str
    seconds: float
    detail: str


@dataclass
class Steps:
    """The steps so far."""

    progress: Progress = quiet
    ended: Callable[[Step], None] = lambda _: None
    done: list[Step] = field(default_factory=list)
    detail: str = ""

    @contextmanager
    def step(self, name: str) -> Iterator[Steps]:
        """Run one step. Raises ImageError, which names the step, for any failure in it. Set
        `detail` for the report."""
        begun, self.detail = time.monotonic(), ""
        self.progress(name, 0, 0)
        try:
            yield self
        except ApplianceError as error:
            raise ImageError(f"build step {name}: {error.summary}", hint=error.hint, code=error.code) from error
        except (OSError, ValueError) as error:
            raise ImageError(f"build step {name}: {error}") from error
        self.done.append(Step(name, time.monotonic() - begun, self.detail))
        self.ended(self.done[-1])
