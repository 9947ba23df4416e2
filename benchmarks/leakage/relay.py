"""The onlooker's machine, a process of its own.

    python -m benchmarks.leakage.relay PORT PID LOG OUT SECONDS

It relays connections to PORT and notes each TLS record that passes, polls what the process PID has
read, and how long the audit log LOG is. It prints its port, and writes OUT as it ends: rows of
`EVENT`. Seconds are of the monotonic clock, which all processes share. Each part that a client
sends waits for up to SECONDS. Clients on the appliance's own machine send between its passes: when
they do would show how busy they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

EVENT = np.dtype([("kind", "u1"), ("port", "u2"), ("at", "f8"), ("first", "i8"), ("second", "i8")])
SENT, CAME, READ, LOGGED = range(4)  # kinds; `first`: a record's bytes, bytes read, or the log's bytes
POLL_SECONDS = 0.002
_HEADER = 5  # bytes of a TLS record's header
Note = Callable[[int, int, int, int], None]


class Records:
    """The TLS records in one direction of a connection."""

    def __init__(self, note: Callable[[int, int], None]) -> None:
        self._note, self._held = note, bytearray()

    def feed(self, data: bytes) -> None:
        """Note each record that is complete: its bytes and its type."""
        self._held += data
        while len(self._held) >= _HEADER:
            size = _HEADER + int.from_bytes(self._held[3:5], "big")
            if len(self._held) < size:
                return
            self._note(size, self._held[0])
            del self._held[:size]


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, records: Records,
                seconds: float = 0.0) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            if seconds:
                await asyncio.sleep(random.uniform(0, seconds))
            records.feed(data)
            writer.write(data)
            await writer.drain()
    writer.close()


class Relay:
    """Relays to a port of this machine, and notes."""

    def __init__(self, target: int, seconds: float) -> None:
        self._target, self._seconds = target, seconds
        self.events: list[tuple[int, int, float, int, int]] = []

    def note(self, kind: int, port: int, first: int, second: int) -> None:
        """Note an event of now."""
        self.events.append((kind, port, time.monotonic(), first, second))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection; its events bear its client's port."""
        port = writer.get_extra_info("peername")[1]
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(
            _pass(reader, back, Records(lambda size, kind: self.note(SENT, port, size, kind)), self._seconds),
            _pass(there, writer, Records(lambda size, kind: self.note(CAME, port, size, kind))))

    async def poll(self, process: int, log: Path) -> None:
        """Note each change of what a process has read, and of a log's length."""
        before: tuple[tuple[int, int], int] | None = None
        while True:
            found = _read(process), log.stat().st_size if log.exists() else 0
            if before is not None and found[0] != before[0]:
                self.note(READ, 0, *(now - then for now, then in zip(found[0], before[0], strict=True)))
            if before is not None and found[1] != before[1]:
                self.note(LOGGED, 0, found[1], 0)
            before = found
            await asyncio.sleep(POLL_SECONDS)


def _read(process: int) -> tuple[int, int]:
    """Bytes that a process has read, by calls and from storage, and how many calls read."""
    try:
        words = Path(f"/proc/{process}/io").read_text().split()
    except OSError:
        return 0, 0
    return int(words[1]) + int(words[9]), int(words[5])


async def main() -> None:
    """Relay until SIGTERM."""
    target, process, log, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    relay = Relay(target, float(sys.argv[5]))
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, backlog=1024)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    polling = asyncio.create_task(relay.poll(process, log))
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    polling.cancel()
    np.save(out, np.array(relay.events, EVENT))


if __name__ == "__main__":
    asyncio.run(main())
