"""Windows by the clock, and bytes that leave in them whatever else the process does."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from appliance.http.departures import Departures, SocketGate
from appliance.http.loop import SWITCH_SECONDS
from appliance.http.windows import Windows

INTERVAL, ROUNDS = 0.04, 9
NS = 1_000_000_000


@pytest.mark.parametrize(("due", "opens", "closes"), [
    (0.040, 0.0325, 0.0345), (0.0401, 0.0725, 0.0745), (0.079, 0.0725, 0.0745), (7.2, 7.1925, 7.1945)])
def test_a_window_is_before_its_multiple(due: float, opens: float, closes: float) -> None:
    """After three quarters of the interval, which passes take, and before the last sixteenth, which plans the next."""
    windows = Windows.of(INTERVAL, 0.2)
    opening = windows.opening(windows.number(due))
    assert (round(opens * NS), round(closes * NS)) == (opening, opening + windows.width_ns)
    assert 0.75 <= opening / INTERVAL / NS % 1 < (opening + windows.width_ns) / INTERVAL / NS % 1 <= 15 / 16


def test_the_next_window_is_one_for_which_there_is_time() -> None:
    """Each has its number once; shorter multiples of answers have windows of their own."""
    windows = Windows.of(INTERVAL, 0.2)
    for number in range(3, 9):
        last = windows.opening(number) - windows.ahead_ns
        assert [number, number + 1] == [windows.next(last - 1), windows.next(last)]
    assert 10_000_000 == Windows.of(INTERVAL, 0.01).interval_ns


_READ = """
import socket, sys, time
other, came = socket.socket(fileno=int(sys.argv[1])), []
print(flush=True)
while data := other.recv(1 << 20):
    came.append((time.monotonic_ns(), data.hex()))
print(came)
"""


class Reader:
    """The other side, a process of its own: what came, and when."""

    def __init__(self, other: socket.socket) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _READ, str(other.fileno())], stdout=subprocess.PIPE,
                                         pass_fds=[other.fileno()], text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it runs
        self.came: list[tuple[int, bytes]] = []

    def end(self) -> None:
        """Wait for its end, upon that of the connection."""
        said, _ = self._process.communicate(timeout=60)
        self.came = [(at, bytes.fromhex(data)) for at, data in ast.literal_eval(said)]

    @property
    def all(self) -> bytes:
        """All that came."""
        return b"".join(data for _, data in self.came)


def _with_gate(work: Callable[[SocketGate], Awaitable[None]]) -> tuple[Windows, Reader]:
    """Do something with the gate of a connection, and end it; what came on its other side."""
    windows = Windows.of(INTERVAL, INTERVAL)
    ours, other = socket.socketpair()
    reader = Reader(other)
    other.close()

    class Ended(asyncio.Protocol):
        def __init__(self, gone: asyncio.Future[None]) -> None:
            self._gone = gone

        def connection_lost(self, exc: Exception | None) -> None:
            self._gone.set_result(None)

    async def run() -> None:
        departures = Departures(windows)
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        transport, _ = await loop.create_connection(lambda: Ended(gone), sock=ours)
        gate = departures.gate(transport)
        await asyncio.wait_for(work(gate), 30)
        gate.close()
        await asyncio.wait_for(gone, 30)
        gate.lose()
        departures.close()

    asyncio.run(run())
    reader.end()
    return windows, reader


def _beside(windows: Windows, at: int) -> int:
    """Nanoseconds since the last opening."""
    return at - windows.opening(windows.next(at - windows.ahead_ns) - 1)


def _busy(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(2000))


@pytest.fixture
def apart() -> Iterator[None]:
    """Threads take turns as in the service, and no other process takes the processor."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(60))
    except PermissionError:
        pytest.skip("no right to a real-time priority")
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    yield
    sys.setswitchinterval(before)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


async def _some(gate: SocketGate, work: int) -> None:
    for number in range(ROUNDS):
        gate.hold()
        gate.write(b"head ")
        await asyncio.sleep(0)
        gate.write(b"%d\n" % number)
        asyncio.get_running_loop().call_later(0.005, sum, range(work))
        await gate.leave(time.monotonic() + 0.01)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("threads", [0, 3])
def test_bytes_leave_in_windows_whatever_is_at_work(threads: int) -> None:
    """In the median: no thread of Python that computes, and no event loop that does, moves them out of theirs."""
    ended = threading.Event()
    for _ in range(threads):
        threading.Thread(target=_busy, args=(ended,), daemon=True).start()
    try:
        windows, reader = _with_gate(lambda gate: _some(gate, 300_000 if threads else 0))
    finally:
        ended.set()
    assert [b"head %d\n" % number for number in range(ROUNDS)] == [data for _, data in reader.came]
    assert statistics.median(_beside(windows, at) for at, _ in reader.came) <= windows.width_ns + 300_000


def test_what_is_written_keeps_its_order() -> None:
    """Held, written while the sender has bytes, or neither."""
    async def work(gate: SocketGate) -> None:
        gate.write(b"1")
        gate.hold()
        gate.write(b"2")
        leaving = asyncio.ensure_future(gate.leave(time.monotonic()))
        await asyncio.sleep(0)
        gate.write(b"3")
        gate.hold()
        gate.write(b"4")
        await leaving
        gate.write(b"5")
        await gate.leave(time.monotonic())
        gate.write(b"6")
        gate.hold()
        gate.write(b"7")
        gate.release()

    assert b"1234567" == _with_gate(work)[1].all


def test_a_client_that_reads_slowly_gets_all() -> None:
    """What its socket does not take waits in the event loop, and so does what follows."""
    parts = [bytes([65 + number]) * 3_000_000 for number in range(4)]

    async def work(gate: SocketGate) -> None:
        for part in parts:
            gate.hold()
            gate.write(part)
            await gate.leave(time.monotonic())

    assert b"".join(parts) == _with_gate(work)[1].all


def test_an_end_waits_for_what_leaves() -> None:
    """A connection is closed after its last bytes; one that is lost lets nobody wait."""
    async def work(gate: SocketGate) -> None:
        gate.hold()
        gate.write(b"last")
        gate.close()
        assert gate.is_closing()
        await gate.leave(time.monotonic())

    assert b"last" == _with_gate(work)[1].all

    async def lost(gate: SocketGate) -> None:
        gate.hold()
        gate.write(b"never")
        leaving = asyncio.ensure_future(gate.leave(time.monotonic()))
        await asyncio.sleep(0)
        gate.lose()
        await leaving
        await gate.leave(time.monotonic())

    assert b"" == _with_gate(lost)[1].all


class Broken(asyncio.Transport):
    """A transport of no socket, which takes nothing."""

    aborted = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        raise OSError(len(data))

    def abort(self) -> None:
        self.aborted = True


def test_what_fails_for_one_lets_the_others_go_on() -> None:
    """Neither its socket nor its transport stops the sender, or what leaves in the same window; also the next one."""
    broken = [Broken(), Broken()]

    async def work(gate: SocketGate) -> None:
        for number in range(2):
            gates = [gate._departures.gate(broken[number]), gate]
            due = time.monotonic() + 0.05
            for each in gates:
                each.hold()
                each.write(b"x")
            await asyncio.gather(*(each.leave(due) for each in gates))

    assert b"xx" == _with_gate(work)[1].all
    assert all(each.aborted for each in broken)


def test_the_end_of_the_sender_lets_nobody_wait() -> None:
    """What it had is left to the event loop."""
    async def work(gate: SocketGate) -> None:
        gate.hold()
        gate.write(b"x")
        leaving = asyncio.ensure_future(gate.leave(time.monotonic() + 0.5))
        await asyncio.sleep(0)
        gate._departures.close()
        await leaving

    assert b"x" == _with_gate(work)[1].all


def test_each_answer_leaves_at_its_own_time() -> None:
    """One that is held while others leave, or waits beside them, neither joins them nor is released with them."""
    due = dict[int, float]()

    async def answer(gate: SocketGate, own: int) -> None:
        gate.hold(own)
        gate.write(b"%d" % own)
        due[own] = time.monotonic() + own / 2
        await gate.leave(due[own], own)
        gate.release(own)
        assert time.monotonic() >= due[own] - INTERVAL

    async def work(gate: SocketGate) -> None:
        await asyncio.gather(*(answer(gate, own) for own in (1, 2, 3)))

    reader = _with_gate(work)[1]
    assert b"123" == reader.all
    for at, data in reader.came:  # late on a busy machine, and then together
        assert at >= (due[int(data[-1:])] - INTERVAL) * NS


def test_windows_are_used_by_many_at_once() -> None:
    """Each gets its own bytes."""
    windows = Windows.of(INTERVAL, INTERVAL)
    ends = [socket.socketpair() for _ in range(4)]
    readers = [Reader(other) for _, other in ends]
    for _, other in ends:
        other.close()

    async def run() -> None:
        departures, loop = Departures(windows), asyncio.get_running_loop()
        made = [await loop.create_connection(asyncio.Protocol, sock=ours) for ours, _ in ends]
        gates = [departures.gate(transport) for transport, _ in made]
        for _ in range(5):
            due = time.monotonic() + 0.05
            await asyncio.gather(*(_leave(gate, b"x", due) for gate in gates))
        for gate in gates:
            gate.lose()
            gate.abort()
        departures.close()

    async def _leave(gate: SocketGate, data: bytes, due: float) -> None:
        gate.hold()
        gate.write(data)
        await gate.leave(due)

    asyncio.run(run())
    for each in readers:
        each.end()
        assert b"xxxxx" == each.all
