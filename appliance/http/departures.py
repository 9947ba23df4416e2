"""Bytes leave in windows, at a time that no work delays: made before, and sent by a thread of its
own.

    loop      hold ... write, write ... leave        the bytes of a parcel, encrypted
    sender                              | window: bytes to the socket, at a random time in it

Bytes that are complete when a window opens leave in it, others wait for the next. The sender takes
the interpreter's lock shortly before, and keeps it until the last bytes of the window have gone.
It waits in the C library, so that no other thread of Python comes between a time and its bytes.
Bytes that a socket does not take at once leave as its client takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import operator
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from appliance.http.windows import Windows

MISSED = 8  # windows one after the other, after which bytes leave outside of one
JOIN_SECONDS = 1.0
_ABSOLUTE = 1  # TIMER_ABSTIME
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_BILLION = 1_000_000_000


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_LIBC = ctypes.PyDLL(None)  # its calls keep the interpreter's lock
_LIBC.clock_nanosleep.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Time), ctypes.c_void_p)
_LIBC.send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.send.restype = ctypes.c_ssize_t


class SocketGate:
    """The transport of a connection's socket, where writes may wait for a window."""

    def __init__(self, transport: Any, departures: Departures) -> None:
        self._transport, self._departures = transport, departures
        self._loop = asyncio.get_running_loop()
        self._held = bytearray()
        self._holders: set[object] = set()  # who keep what is written: the answer under way, or one after it
        self._sent = 0  # bytes that were held, and are no more
        self._leaving: Parting | None = None  # with the sender
        self._after: list[Callable[[], None]] = []  # what is done once all has left
        self._closing = False
        self.lock, self.lost = threading.Lock(), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def number(self) -> int:
        """The socket's, to which nothing else is written while the sender has it; negative where
        its client has not taken all that was sent before."""
        slow = self.lost or self._transport.get_write_buffer_size() > 0
        return -1 if slow else int(self._transport.get_extra_info("socket").fileno())

    @property
    def waits(self) -> bool:
        """Whether something is kept for a window, or may be."""
        return bool(self._holders) or self._leaving is not None

    def hold(self, own: object = None) -> None:
        """Keep what is written from now on, until it left or was released as its `own`."""
        self._holders.add(own)

    def write(self, data: bytes) -> None:
        """Send, or keep."""
        if self.waits:
            self._held += data
        else:
            self._transport.write(data)

    async def leave(self, due: float, own: object = None) -> None:
        """Let what was kept by now leave in the window of a time, or in the next that is left;
        return when it has. Later bytes are of a later answer."""
        until = self._sent + len(self._held)
        while self._leaving is not None:
            await asyncio.wait({self._leaving.gone})
        self._holders.discard(own)
        data = self._take(max(0, until - self._sent))
        if self.lost:
            return
        if not data:
            self._rest(b"")
            return
        leaving = self._leaving = self._departures.add(self, data, due)
        await asyncio.wait({leaving.gone})

    def release(self, own: object = None) -> None:
        """Keep nothing any longer for an answer that is over, as where it broke off."""
        self._holders.discard(own)
        if not self.waits:
            self._rest(b"")

    def _take(self, size: int) -> bytes:
        data = bytes(self._held[:size])
        del self._held[:size]
        self._sent += len(data)
        return data

    def went(self, leaving: Parting, taken: int) -> None:
        """Go on: the sender is done, and the socket took so many bytes."""
        self._leaving = None
        if not leaving.gone.done():
            leaving.gone.set_result(None)
        if not self.lost:
            self._rest(leaving.data[taken:])

    def _rest(self, data: bytes) -> None:
        if not self._holders:
            data += self._take(len(self._held))
        if data and not self._transport.is_closing():
            self._transport.write(data)
        while self._after and not self._holders:
            self._after.pop(0)()

    def close(self) -> None:
        """End the connection, after what waits."""
        self._closing = True
        self.then(self._transport.close)

    def write_eof(self) -> None:
        """End this side, after what waits."""
        self.then(self._transport.write_eof)

    def then(self, do: Callable[[], None]) -> None:
        """Do something, after what waits."""
        if self.waits:
            self._after.append(do)
        else:
            do()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be after what waits."""
        return self._closing or bool(self._transport.is_closing())

    def lose(self) -> None:
        """Take note of the connection's end. Its socket is closed next: nobody sends now."""
        with self.lock:
            self.lost = True
        self._take(len(self._held))
        self._after.clear()


class Parting:
    """Bytes on their way to a window, by its number."""

    def __init__(self, gate: SocketGate, data: bytes, window: int) -> None:
        self.gate, self.data, self.window = gate, data, window
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def calls(self, at: int) -> tuple[Callable[[], int], Callable[[], int]]:
        """Wait until a time, and send."""
        return (partial(_LIBC.clock_nanosleep, time.CLOCK_MONOTONIC, _ABSOLUTE, _Time(*divmod(at, _BILLION)), None),
                partial(_LIBC.send, self.gate.number, self.data, len(self.data), _FLAGS))


class Departures:
    """The sender, a thread of its own, and what waits for it."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._added: queue.SimpleQueue[Parting | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Parting] = []
        self._thread = threading.Thread(target=self._run, name="departures", daemon=True)
        self._thread.start()

    def gate(self, transport: Any) -> SocketGate:
        """A gate before a socket's transport, in the event loop."""
        self._loop = asyncio.get_running_loop()
        return SocketGate(transport, self)

    def add(self, gate: SocketGate, data: bytes, due: float) -> Parting:
        """Take bytes that are complete, and leave in the window of a time or in the next that is
        left."""
        leaving = Parting(gate, data, max(self.windows.number(due), self.windows.next(time.monotonic_ns())))
        self._added.put(leaving)
        return leaving

    def close(self) -> None:
        """End the thread, which may sleep until a window that nobody needs any more."""
        self._added.put(None)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while self._waiting or self._take(block=True):
            try:
                if not self._turn(self._next()):
                    break
            except Exception:  # noqa: BLE001 - the thread is all connections'
                self._give_up()
        self._give_up()

    def _turn(self, window: int) -> bool:
        """Send what is due in a window; False at the end."""
        if not self._take(block=False):
            return False
        due = [each for each in self._waiting if each.window <= window]
        self._waiting = [each for each in self._waiting if each.window > window]
        self._tell(due, self._sent(due, window))
        return True

    def _give_up(self) -> None:
        """Leave what waits to the event loop."""
        waiting, self._waiting = self._waiting, []
        self._tell(waiting, [0] * len(waiting))

    def _next(self) -> int:
        """Sleep until shortly before a window; return its number. Windows are left out where the
        thread comes to run only after they opened, but not for ever."""
        for _ in range(MISSED):
            number = self.windows.next(time.monotonic_ns())
            opening = self.windows.opening(number)
            time.sleep(max(0, opening - self.windows.ahead_ns - time.monotonic_ns()) / _BILLION)
            if time.monotonic_ns() < opening:
                break
        return number

    def _take(self, *, block: bool) -> bool:
        """Take what was added; False at the end."""
        with contextlib.suppress(queue.Empty):
            while (added := self._added.get(block)) is not None:
                self._waiting.append(added)
                block = False
            return False
        return True

    def _sent(self, due: list[Parting], window: int) -> list[int]:
        """Send each at a random time in the window, in their order; how much each socket took. No
        socket is closed meanwhile. Where something fails, the rest is not sent."""
        opening, width, done = self.windows.opening(window), self.windows.width_ns, list[int]()
        with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
            times = sorted(opening + secrets.randbelow(width) for _ in due)
            secrets.SystemRandom().shuffle(due)
            for leaving in due:
                stack.enter_context(leaving.gate.lock)
            done.extend(map(operator.call, [
                call for leaving, at in zip(due, times, strict=True) for call in leaving.calls(at)]))
        taken = [max(0, each) for each in done[1::2]]
        return taken + [0] * (len(due) - len(taken))

    def _tell(self, due: list[Parting], taken: list[int]) -> None:
        """Let the event loop go on."""
        def tell() -> None:
            for leaving, nbytes in zip(due, taken, strict=True):
                try:
                    leaving.gate.went(leaving, nbytes)
                except Exception:  # noqa: BLE001 - the others wait, too
                    leaving.gate.abort()
                leaving.data = b""

        if due and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: nobody waits
                self._loop.call_soon_threadsafe(tell)
