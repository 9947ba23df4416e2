"""The environment for a process that must run as it would for a user: nothing of the test run's own in it."""

from __future__ import annotations

import os
import signal


def unmeasured() -> dict[str, str]:
    """This environment without what makes coverage start in a child, which would import modules and set trace hooks."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def usual_signals() -> None:
    """For `preexec_fn`: children inherit signals that are ignored, as under nohup or in a shell's background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
