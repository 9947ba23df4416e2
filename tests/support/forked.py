"""Isolated processes of the command line, forked from a process that has imported it.

`python -m appliance serve` compiles all that it imports, since an isolated interpreter trusts no bytecode: two seconds
a start. Here one interpreter for a whole run of tests, isolated in the same way by the product's own command line,
imports the modules once. Each process is a fork of it, and takes the product's way from there on: `isolated.begin` with
the environment handed over, `__main__.start`, and `again`, which finds nothing to do.

A process is a child of the tests, as it would be without. A test that needs a fresh process (its
command line, its environment for proc(5), its memory from the first byte on) asks for it:
`Server(fresh=True)`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from appliance import isolated
from tests.support.environment import usual_signals

# Modules that a verb imports before its work; litestar imports the last ones when it makes an application.
MODULES = ("appliance.cli.main", "appliance.cli.serve", "appliance.cli.infer", "appliance.policy.hcl.tokens",
           "appliance.policy.hcl.values", "appliance.policy.hcl.reading",
           "appliance.llamacpp.choice", "importlib.readers", "numpy.ma")
OPTIONAL = ("litestar.plugins.pydantic", "litestar.plugins.attrs", "litestar.plugins.opentelemetry", "litestar._kwargs",
            "litestar.middleware._internal.exceptions", "starlette.exceptions")
ENTRY = "appliance.__main__:start"
_PR_SET_CHILD_SUBREAPER = 36
_MOST = 1 << 20  # bytes of a request


class Forked:
    """A process: what tests need of `subprocess.Popen`. `stdout`, `stderr`: what comes of it, if that was asked for."""

    def __init__(self, pid: int, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with self._lock:
            if self.returncode is None:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                if found:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code. subprocess.TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            watched = os.pidfd_open(self.pid)
            try:
                waiting = select.poll()
                waiting.register(watched, select.POLLIN)
                waiting.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(watched)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _parent() -> socket.socket:
    """The way to the process that forks, which is started at the first request."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = isolated.command("tests.support.forked:main", [str(theirs.fileno())])
    process = subprocess.Popen(words, env=dict(isolated.SET), pass_fds=[theirs.fileno()], cwd="/",
                               preexec_fn=usual_signals)
    theirs.close()

    def end() -> None:
        ours.close()  # it ends when nobody asks any more
        process.wait()

    atexit.register(end)
    return ours


_asking = threading.Lock()


def start(words: Sequence[str], environment: dict[str, str], *, out: int, err: int, file_size: int | None = None,
          program: str | None = None, entry: str = ENTRY) -> Forked:
    """Start `appliance` with these words, or a `program` as `python -c` would, or another `entry` in the same
    isolation. `out`, `err`: descriptors of its standard output and error. `file_size`: the limit of bytes of each file
    that it writes."""
    with _asking:
        asking = _parent()
        handed = os.memfd_create("environment")
        try:
            os.write(handed, json.dumps(environment).encode())
            request = {"words": list(words), "folder": str(Path.cwd()), "file_size": file_size, "program": program,
                       "entry": entry}
            _adopt(True)
            socket.send_fds(asking, [json.dumps(request).encode()], [out, err, handed])
            answer = asking.recv(64)
        finally:
            _adopt(False)
            os.close(handed)
    assert answer, "the process that forks has ended"
    return Forked(int(answer))


def piped(words: Sequence[str], environment: dict[str, str], program: str | None = None) -> Forked:
    """As `start`, with pipes for what it says."""
    out, err = os.pipe(), os.pipe()
    child = start(words, environment, out=out[1], err=err[1], program=program)
    for written in (out[1], err[1]):
        os.close(written)
    child.stdout, child.stderr = os.fdopen(out[0], "rb"), os.fdopen(err[0], "rb")
    return child


def run(words: Sequence[str], environment: dict[str, str], *, program: str | None = None,
        entry: str = ENTRY) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, with all that it says. A `program` has an interpreter of its own where it is measured for
    coverage."""
    if program is not None and any(name.startswith("COVERAGE_") for name in environment):
        return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False,
                              env=environment)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with start(words, environment, out=out.fileno(), err=err.fileno(), program=program, entry=entry) as child:
            code = child.wait()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(list(words), code, *said)


def _adopt(wanted: bool) -> None:
    """Whether children of children that ended become this process's own, see prctl(2)."""
    assert 0 == ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def main() -> None:
    """The process that forks: import everything, then a process for each request."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    for name in MODULES:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what a child looked through would be copied for it
    while True:
        data, descriptors, _, _ = socket.recv_fds(asked, _MOST, 3)
        if not data:
            return
        assert 1 == len(list(Path("/proc/self/task").iterdir())), "a thread would be lost by a fork"
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for descriptor in (told, tell):
                    os.close(descriptor)
                asked.close()
                _run(json.loads(data), descriptors)
            os.write(tell, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)  # from now on the child is the tests' own
        asked.send(os.read(told, 64))
        for descriptor in (told, tell, *descriptors):
            os.close(descriptor)


def _run(request: dict[str, object], descriptors: list[int]) -> None:
    """Be the process: as a fresh interpreter would be after `execve` by `isolated.again`."""
    out, err, handed = descriptors
    for descriptor, number in ((out, 1), (err, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = sys.__stdout__ = _stream(1, "surrogateescape")  # as with -X utf8
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace", line_buffering=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(str(request["folder"]))
    if (limit := request["file_size"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(str(limit)), int(str(limit))))
    given = json.loads(os.pread(handed, _MOST, 0))
    words, program = request["words"], request["program"]
    assert isinstance(words, list)
    for name in list(os.environ):
        del os.environ[name]
    if program is not None:
        os.close(handed)
        os.environ.update(given)
        sys.argv = ["-c", *words]
        exec(str(program), {"__name__": "__main__"})  # noqa: S102 - a test's own
        sys.exit()
    os.environ.update(isolated.SET | {name: value for name, value in given.items()
                                      if name in isolated.KEPT and isolated.KEPT[name].fullmatch(value)})
    isolated.begin(str(handed), sys.prefix, json.dumps(sys.path), str(request["entry"]), *words)


def _stream(descriptor: int, errors: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """A stream as the interpreter opens it: it may be a file, a pipe or a terminal."""
    return io.TextIOWrapper(open(descriptor, "wb", closefd=False),
                            "utf-8", errors, line_buffering=line_buffering)
