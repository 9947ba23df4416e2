"""Python's own ways to speak: a canary in messages, arguments, locals and exceptions never comes out."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import logging.config
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator

import pytest

from appliance.audit.log import AuditLog
from appliance.boot.stdlib import Silence

CANARY = "xyzzycanary7741"


@pytest.fixture
def silenced() -> Iterator[tuple[AuditLog, io.BytesIO, Silence]]:
    """A log with every hook installed, and put back afterwards."""
    gc.collect()  # what other tests left open must not warn into this log
    sink = io.BytesIO()
    log = AuditLog(sink)
    silence = Silence(log).install()
    try:
        yield log, sink, silence
    finally:
        silence.restore()


def _speak(logger: logging.Logger) -> None:
    local = CANARY
    try:
        raise ValueError(local)
    except ValueError:
        logger.exception("failed on %s", local, extra={"body": CANARY}, stack_info=True)


def test_logging_says_logger_and_level_only(
        silenced: tuple[AuditLog, io.BytesIO, Silence], capfd: pytest.CaptureFixture[str]) -> None:
    """Library loggers of any depth are counted by name and level; the first of each kind is one line."""
    _, sink, silence = silenced
    for name in ("uvicorn.error", "uvicorn.access", "litestar", "asyncio", f"{CANARY}.x", "py.warnings"):
        for _ in range(3):
            _speak(logging.getLogger(name))
    captured = capfd.readouterr()
    assert CANARY not in sink.getvalue().decode() + captured.out + captured.err
    assert {("uvicorn", "error"): 6, ("litestar", "error"): 3, ("asyncio", "error"): 3, ("other", "error"): 3,
            ("py.warnings", "error"): 3} == dict(silence.counts)
    assert 5 == len(sink.getvalue().splitlines())


def test_a_handler_that_a_library_installs_later_gets_no_text(
        silenced: tuple[AuditLog, io.BytesIO, Silence]) -> None:
    """uvicorn's default set-up adds handlers and formatters of its own: they have nothing to format."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(
        "%(message)s %(exc_text)s %(args)s %(pathname)s %(funcName)s %(body)s", defaults={"body": "none"}))
    logger = logging.getLogger("late.library")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        _speak(logger)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert CANARY not in stream.getvalue()
    assert "test_audit" not in stream.getvalue()
    assert "none" in stream.getvalue()


def test_warnings_are_counted_without_text(
        silenced: tuple[AuditLog, io.BytesIO, Silence], capfd: pytest.CaptureFixture[str]) -> None:
    """A warning's message goes nowhere."""
    _, sink, silence = silenced
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn(CANARY, stacklevel=1)
    captured = capfd.readouterr()
    assert 1 == silence.counts["py.warnings", "warning"]
    assert CANARY not in sink.getvalue().decode() + captured.out + captured.err


def test_thread_exceptions_are_class_and_place(
        silenced: tuple[AuditLog, io.BytesIO, Silence], capfd: pytest.CaptureFixture[str]) -> None:
    """An exception in a thread is reported by its class; a place outside of our code is not told."""
    _, sink, _ = silenced

    def work() -> None:
        raise KeyError(CANARY)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    captured = capfd.readouterr()
    record = json.loads(sink.getvalue())
    assert ("runtime.exception", "KeyError", "thread") == (record["event"], record["type"], record["where"])
    assert "place" not in record
    assert CANARY not in sink.getvalue().decode() + captured.out + captured.err


def test_asyncio_exceptions_are_class_and_place(
        silenced: tuple[AuditLog, io.BytesIO, Silence], capfd: pytest.CaptureFixture[str]) -> None:
    """What the event loop would have printed, task reprs included, becomes one record."""
    _, sink, silence = silenced

    async def fail() -> None:
        AuditLog(io.BytesIO(), strict=True).write(CANARY)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(silence.asyncio_handler)
        task = asyncio.get_running_loop().create_task(fail(), name=CANARY)
        await asyncio.sleep(0)
        del task
        asyncio.get_running_loop().call_exception_handler({"message": CANARY})

    asyncio.run(main())
    captured = capfd.readouterr()
    records = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert {"ValueError", "None"} == {record["type"] for record in records}
    assert any(record.get("place", "").startswith("appliance.audit.log:") for record in records)
    assert CANARY not in sink.getvalue().decode() + captured.out + captured.err


@pytest.mark.parametrize("failure", [
    "raise RuntimeError(CANARY)",
    "exec(f'def {\"f\"}(): raise ValueError(CANARY)'); f()",
    "class Odd:\n    def __del__(self): raise OSError(CANARY)\nOdd()",
    "import logging; logging.getLogger('x').critical(CANARY); logging.getLogger().warning('%d', CANARY)",
    "raise ExceptionGroup(CANARY, [ValueError(CANARY)])",
    "raise type('E' + CANARY, (Exception,), {})(CANARY)",
])
def test_a_process_that_dies_says_no_content(failure: str) -> None:
    """Whatever kills the process, neither standard output nor standard error has the message."""
    program = textwrap.dedent("""
        import io, sys
        CANARY = "xyzzy" + "canary7741"
        from appliance.audit.log import AuditLog
        from appliance.audit.sink import open_sink
        from appliance.boot.stdlib import Silence
        Silence(AuditLog(open_sink(None))).install()
    """) + failure
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert CANARY not in done.stdout + done.stderr
    assert "runtime." in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after", [
    "log.close()",
    "log._out.close()",
    "import sys; sys.stderr.close()",
])
def test_a_process_that_dies_without_its_log_says_no_content(after: str) -> None:
    """An exception when the log is gone already, or standard error is, does not fall back to Python's own report."""
    program = textwrap.dedent("""
        import logging
        CANARY = "xyzzy" + "canary7741"
        from appliance.audit.log import AuditLog
        from appliance.audit.sink import open_sink
        from appliance.boot.stdlib import Silence
        log = AuditLog(open_sink(None))
        Silence(log).install()
    """) + after + "\nlogging.getLogger('uvicorn').error(CANARY)\nraise ValueError(CANARY)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert 1 == done.returncode
    assert CANARY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_restore_puts_everything_back() -> None:
    """After `restore` logging speaks again."""
    Silence(AuditLog(io.BytesIO())).install().restore()
    record = logging.getLogRecordFactory()("x", logging.INFO, "p", 1, "text %s", ("y",), None)
    assert "text y" == record.getMessage()
    assert sys.excepthook is sys.__excepthook__ or "appliance" not in getattr(sys.excepthook, "__module__", "")
