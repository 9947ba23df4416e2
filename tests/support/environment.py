"""The environment for a process that must run as it would for a user: nothing of the test run's own in it."""

from __future__ import annotations

import os


def unmeasured() -> dict[str, str]:
    """This environment without what makes coverage start in a child, which would import modules and set trace hooks."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
