"""The owner's command that boots a faked machine: it asks the process of the tests, which has imported what that takes.

    python -m tests.support.acceptance_boot SOCKET PLATFORM FOLDER MODELS IMAGE --port PORT

`tests.support.acceptance_machine.host` answers at the socket.
"""

from __future__ import annotations

import json
import signal
import socket
import sys


def main() -> int:
    """Start the machine with this process's output, end it with SIGTERM, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(sys.argv[1])
        signal.signal(signal.SIGTERM, lambda *_: asked.shutdown(socket.SHUT_WR))
        socket.send_fds(asked, [json.dumps(sys.argv[2:]).encode()], [1, 2])
        return int(asked.recv(16) or b"1")


if __name__ == "__main__":
    sys.exit(main())
