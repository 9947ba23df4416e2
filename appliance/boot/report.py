"""The boot report: each step, its verdict and duration; what `/health` and the boot's progress
show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["passed", "tolerated", "skipped", "failed"]
VERDICTS: tuple[Verdict, ...] = ("passed", "tolerated", "skipped", "failed")
# Called with (step, done, total, unit) while a step works: bytes read, answers checked. When it
# begins, with zeros and no unit; when it has ended, with zeros and its verdict for a unit; between,
# with zeros and a sentence.
OF_PROCESS_1 = Path("/run/boot-report.json")  # in the image: what process 1 did before the service started
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class StageResult:
    """One step of the boot. `detail` is for people; it holds names and digests of the policy,
    nothing secret."""

    name: str
    verdict: Verdict
    duration_us: int
    detail: str = ""


@dataclass
class Remark:
    """The words of a step about itself while it runs."""

    verdict: Verdict = "passed"
    detail: str = ""

    def skip(self, why: str) -> None:
        """There was nothing to do."""
        self.verdict, self.detail = "skipped", why

    def tell(self, what: str, otherwise: str) -> None:
        """Say what was done; or, if that is nothing, why there was nothing to do."""
        if what:
            self.detail = what
        else:
            self.skip(otherwise)

    def tolerate(self, what: Iterable[str]) -> None:
        """Some measures did not hold, on a platform where that is tolerated."""
        names = ", ".join(what)
        if names:
            self.verdict, self.detail = "tolerated", f"not in force: {names}"


@dataclass
class BootReport:
    """The steps so far, in order."""

    steps: list[StageResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no step failed."""
        return all(step.verdict != "failed" for step in self.steps)

    @property
    def duration_us(self) -> int:
        """Time of all steps together, in microseconds."""
        return sum(step.duration_us for step in self.steps)

    def as_json(self) -> list[dict[str, Any]]:
        """Plain data for `/health` and `--json`."""
        return [{"step": step.name, "verdict": step.verdict, "duration_us": step.duration_us, "detail": step.detail}
                for step in self.steps]


def quiet(_step: str, _done: int, _total: int, _unit: str) -> None:
    """A `Progress` that shows nothing."""


def begun_report(path: Path = OF_PROCESS_1) -> BootReport:
    """A report that begins with the steps of process 1, where there is one of ours."""
    try:
        steps = json.loads(path.read_bytes())
    except OSError:
        return BootReport()
    return BootReport([StageResult(**step) for step in steps])
