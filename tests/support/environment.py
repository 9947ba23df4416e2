"""The environment for a process that must run as it would for a user: nothing of the test run's own in it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


def unmeasured() -> dict[str, str]:
    """This environment without what makes coverage start in a child, which would import modules and set trace hooks."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


@contextlib.contextmanager
def children_unmeasured() -> Iterator[None]:
    """Coverage of children that are started within is not measured: for children that compile or
    run templates it takes up to half the time, and their code is measured elsewhere."""
    before = dict(os.environ)
    for name in before.keys() - unmeasured().keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Coverage is not measured within, nor in a test that this decorates: it would take up to three
    times as long, and other tests also run all of that code. (Of pytest-cov's mark for that, a
    worker of xdist takes no notice.)"""
    trace, threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # for threads that start within
    try:
        yield
    finally:
        sys.settrace(trace)
        threading.settrace(threads)


def usual_signals() -> None:
    """For `preexec_fn`: children inherit signals that are ignored, as under nohup or in a shell's background."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
