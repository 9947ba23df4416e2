"""Child processes whose coverage is not measured: it makes those that compile, or run templates, up to twice as slow,
and what they run is measured elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "COVERAGE_PROCESS_CONFIG"  # by which coverage starts in children


@contextmanager
def unmeasured() -> Iterator[None]:
    """Children that are started within are not measured."""
    value = os.environ.pop(_VARIABLE, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[_VARIABLE] = value
