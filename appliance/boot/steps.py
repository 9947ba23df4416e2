"""The frame around the steps of a boot: each is named, timed, recorded, and fails closed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from appliance.audit.log import AuditLog
from appliance.boot.report import BootReport, Progress, Remark, StageResult, Verdict
from appliance.boot.selftest.run import SelfTest
from appliance.boot.stdlib import place
from appliance.errors import ApplianceError, BootError, shortage


class Steps:
    """Names, times and records the steps."""

    def __init__(self, audit: AuditLog, report: BootReport, progress: Progress) -> None:
        self.audit, self.report, self._progress = audit, report, progress
        self._name = ""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Remark]:
        """Run one step; whatever goes wrong in it becomes one BootError."""
        self._name, note, begun = name, Remark(), time.monotonic_ns()
        self._progress(name, 0, 0, "")
        try:
            yield note
        except Exception as error:  # noqa: BLE001 - fail closed, whatever it was
            raise self._failed(name, begun, error) from None
        self._done(name, note.verdict, begun, note.detail)

    def say(self, text: str) -> None:
        """Tell whoever waits something about the present step before it ends."""
        self._progress(self._name, 0, 0, text)

    def service(self, begun: int, tested: SelfTest, generation: int, models: int
                ) -> Callable[[Exception | None], BootError | None]:
        """The last step, which the service ends: call the result with None once it listens, or with
        what stopped it."""
        started = time.monotonic_ns()

        def end(error: Exception | None) -> BootError | None:
            if error is not None:
                return self._failed("service", started, error)
            self._done("service", "passed", started)
            self.audit.seal()
            self.audit.write("boot.ready", duration_us=(time.monotonic_ns() - begun) // 1000, generation=generation,
                             self_test_sha384=tested.digest.hex(), models=models)
            return None

        return end

    def counter(self, unit: str) -> Callable[[int, int], None]:
        """A progress callback for the present step."""
        return lambda done, total: self._progress(self._name, done, total, unit)

    def _done(self, name: str, verdict: Verdict, begun: int, detail: str = "", code: str | None = None) -> None:
        took = (time.monotonic_ns() - begun) // 1000
        self.report.steps.append(StageResult(name, verdict, took, detail))
        self._progress(name, 0, 0, verdict)
        self.audit.write("boot.step", step=name, verdict=verdict, duration_us=took, code=code)

    def _failed(self, name: str, begun: int, error: Exception) -> BootError:
        failure = diagnostic(name, error)
        self.audit.admit_codes([failure.code])
        self._done(name, "failed", begun, failure.summary, failure.code)
        self.audit.write("boot.failed", step=name, code=failure.code)
        return failure


def diagnostic(step: str, error: Exception) -> BootError:
    """One diagnostic: the step, then what was expected and found."""
    error = shortage(error) or error
    if isinstance(error, ApplianceError):
        return BootError(f"boot stopped at step {step}: {error.summary}", hint=error.hint, code=error.code)
    spot = place(error.__traceback__) or "a library"
    return BootError(f"boot stopped at step {step}: {type(error).__name__} at {spot}", code="boot-internal",
                     hint="this is a defect of the appliance, or the machine is out of memory or disk")
