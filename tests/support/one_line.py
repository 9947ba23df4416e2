"""The command `appliance` for shells of tests: each call is a fork of one process that has imported the command line.

    python -m tests.support.one_line SOCKET

A script of some lines hands over words, folder, environment and the three standard streams, and waits for the exit
code. It takes a twentieth of a second where a fresh interpreter takes half of one. Verbs that the product runs in an
isolated interpreter get one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance import isolated
from tests.support import each_verb, forked, waiting

_SCRIPT = """#!{python} -IS
import json, os, signal, socket, sys
if any(word in {fresh} for word in sys.argv[1:2]):
    os.execv({python!r}, [{python!r}, "-m", "appliance", *sys.argv[1:]])
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({place!r})
socket.send_fds(line, [json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
process = int(line.recv(64))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(process, number))
sys.exit(int(line.recv(64)))
"""
_MOST = 1 << 20  # bytes of a request


@contextlib.contextmanager
def command(folder: Path) -> Iterator[Path]:
    """A folder for PATH that has the command, while the process is there from which it forks."""
    place = folder / "line"
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "appliance"
    script.write_text(_SCRIPT.format(python=sys.executable, fresh=isolated.VERBS, place=str(place)))
    script.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-m", "tests.support.one_line", str(place)], start_new_session=True)
    try:
        waiting.until(lambda: place.exists() or process.poll() is not None, "line",
                      lambda: waiting.processor_time(process.pid))
        yield bin_folder
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Answer calls until SIGTERM."""
    run = each_verb.imported()
    made = Path(sys.argv[1]).with_suffix(".new")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(made))
    listening.listen(16)
    made.rename(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who answers a call
    while True:
        call, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(call, run)
        call.close()


def _answer(call: socket.socket, run: Callable[[list[str]], int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(call, _MOST, 3)
    words, folder, environment = json.loads(data)
    child = os.fork()
    if child == 0:
        call.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdout = sys.__stdout__ = forked._stream(1, "surrogateescape")
        sys.stderr = sys.__stderr__ = forked._stream(2, "backslashreplace", line_buffering=True)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os._exit(each_verb._code(lambda: run(words)))
    call.send(str(child).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    call.send(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
