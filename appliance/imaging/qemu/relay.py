"""A TCP connection on behalf of a guest. QEMU starts this file for each connection that the guest
opens to the one address that leads out of it. The guest's end is standard input and output.
Standard library only."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading


def copy(source: socket.socket, sink: socket.socket) -> None:
    """Bytes from one to the other until the source has no more; then the sink hears that it was
    all."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def main() -> None:
    """`relay.py HOST PORT`."""
    with socket.socket(fileno=0) as guest, socket.create_connection((sys.argv[1], int(sys.argv[2]))) as server:
        back = threading.Thread(target=copy, args=(server, guest), daemon=True)
        back.start()
        copy(guest, server)
        back.join()


if __name__ == "__main__":
    main()
