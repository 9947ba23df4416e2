"""Python's own ways to speak, silenced: logging, warnings, tracebacks.

Libraries put request paths, headers and reprs of locals into log messages and tracebacks. So a log
record loses its text where it is made, before any handler that a library may install can see it;
what is kept is a count by logger and level. An exception that nobody handles is reported as its
class and the place in our code, never its message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections import Counter, deque
from types import TracebackType
from typing import Any

from appliance.audit.events import LEVELS, LOGGERS, TYPE_NAME
from appliance.audit.log import AuditLog
from appliance.errors import AuditError

_OWN = "appliance."
_MOST, _SECONDS = 20, 60.0  # exceptions that are told by themselves in so many seconds; others are counted


def place(trace: TracebackType | None) -> str | None:
    """Module and line of the innermost frame in our code, as `appliance.x.y:123`; None if there is
    none."""
    found = None
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if isinstance(module, str) and module.startswith(_OWN):
            found = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def class_name(kind: type[BaseException] | None) -> str:
    """The name of an exception class that some module defines, as the log takes it; a class made up
    at run time has none."""
    if kind is None:
        return "None"
    defined: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        defined = getattr(defined, part, None)
    return kind.__name__ if defined is kind and TYPE_NAME.accepts(kind.__name__) else "Unknown"


class _Counting(logging.Handler):
    """Counts records by logger and level; the first of each kind is told to the audit log."""

    def __init__(self, log: AuditLog) -> None:
        super().__init__(logging.NOTSET)
        self._log = log
        self._within = threading.local()
        self.counts: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one record."""
        name = record.name if record.name in LOGGERS else record.name.partition(".")[0]
        name = name if name in LOGGERS else "other"
        level = record.levelname.lower()
        level = level if level in LEVELS else "info"
        if getattr(self._within, "busy", False):
            return  # the audit log itself logged: count nothing, never recurse
        self._within.busy = True
        try:
            self._log.silenced += 1
            self.counts[name, level] += 1
            if self.counts[name, level] == 1:
                with contextlib.suppress(AuditError):  # a library that logs must not fail; requests will
                    self._log.write("runtime.log", logger=name, level=level)
        finally:
            self._within.busy = False


class Silence:
    """All hooks installed; `counts` by (logger, level) for the metrics. `restore` is for tests."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._handler = _Counting(log)
        self._before: dict[str, Any] = {}
        self._told = deque[float](maxlen=_MOST)  # when exceptions were told

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Records silenced, by logger and level."""
        return self._handler.counts

    def install(self) -> Silence:
        """Take over logging, warnings and the hooks for unhandled exceptions."""
        root = logging.getLogger()
        self._before = {
            "factory": logging.getLogRecordFactory(), "make": logging.Logger.makeRecord,
            "handlers": root.handlers[:], "level": root.level,
            "raise": logging.raiseExceptions, "last": logging.lastResort, "hook": sys.excepthook,
            "thread": threading.excepthook, "unraisable": sys.unraisablehook}
        logging.setLogRecordFactory(_textless)
        logging.Logger.makeRecord = _bare  # type: ignore[method-assign, assignment]  # `extra=` passes the factory by
        logging.raiseExceptions = False
        logging.lastResort = None
        root.handlers[:] = [self._handler]
        root.setLevel(logging.INFO)
        for name in list(logging.Logger.manager.loggerDict):
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, _value, trace: self.exception("main", kind, trace)
        threading.excepthook = lambda args: self.exception("thread", args.exc_type, args.exc_traceback)
        sys.unraisablehook = lambda args: self.exception("unraisable", args.exc_type, args.exc_traceback)
        return self

    def restore(self) -> None:
        """Put back what `install` replaced (loggers of libraries keep their cleared handlers)."""
        root = logging.getLogger()
        logging.setLogRecordFactory(self._before["factory"])
        logging.Logger.makeRecord = self._before["make"]  # type: ignore[method-assign]
        root.handlers[:] = self._before["handlers"]
        root.setLevel(self._before["level"])
        logging.raiseExceptions, logging.lastResort = self._before["raise"], self._before["last"]
        sys.excepthook, threading.excepthook = self._before["hook"], self._before["thread"]
        sys.unraisablehook = self._before["unraisable"]
        logging.captureWarnings(False)

    def exception(self, where: str, kind: type[BaseException] | None, trace: TracebackType | None) -> None:
        """Report an unhandled exception: its class and place to the audit log and to standard
        error. Those beyond a few in a minute are counted: whoever finds a way to cause them could
        fill both."""
        now = time.monotonic()
        if len(self._told) == _MOST and now < self._told[0] + _SECONDS:
            self._log.counted.exception()
            return
        self._told.append(now)
        name = class_name(kind)
        spot = place(trace)
        # A hook that raised would make Python print the exception after all, message included.
        with contextlib.suppress(AuditError):
            self._log.write("runtime.exception", type=name, place=spot, where=where)
        if where == "request":
            return  # its own record says enough, and whoever asks could fill standard error
        with contextlib.suppress(OSError, ValueError):
            print(f"appliance: unhandled {name} at {spot or 'a library'} ({where})", file=sys.stderr)  # noqa: T201

    def asyncio_handler(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler`: the context's message and objects are not looked at."""
        error = context.get("exception")
        self.exception("asyncio", type(error) if error is not None else None,
                       error.__traceback__ if error is not None else None)


def _textless(name: str, level: int, _path: str, _line: int, _message: object, *_rest: Any,
              **_more: Any) -> logging.LogRecord:
    """A record without message, arguments, exception or stack: what a handler never gets it cannot
    write."""
    return logging.LogRecord(name, level, "", 0, "", (), None)


def _bare(_logger: logging.Logger, name: str, level: int, *_rest: Any, **_more: Any) -> logging.LogRecord:
    """In place of `Logger.makeRecord`."""
    return _textless(name, level, "", 0, "")
