"""What the key release process may do once it is hardened, tried from within: `main` prints what came of each attempt.

Arguments: the broker's port, another port, a file that it has no right to.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from appliance.keys.release import process as keyrelease_process


def _refused(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "done"


def main() -> None:
    """Enter the confinement, and try everything."""
    port, other, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    keyrelease_process._harden({"tolerant": False, "until": time.monotonic() + 20, "tpm": "/dev/tpmrm0",
                                "brokers": [{"url": f"https://127.0.0.1:{port}", "root_sha256": "00"}]})
    print(*map(_refused, (
        lambda: socket.create_connection(("127.0.0.1", port)).close(),
        lambda: socket.create_connection(("127.0.0.1", other)).close(),
        lambda: socket.create_server(("127.0.0.1", 0)), Path("/proc/self/environ").read_bytes, path.read_bytes,
        lambda: path.write_bytes(b"x"), Path("/etc/hosts").read_bytes)))
