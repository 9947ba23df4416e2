"""A pool of threads that run one kernel after another in lock-step.

Workers are Python threads that live inside the compiled loop `lockstep_work`, without the
interpreter lock. Between jobs they spin for some tens of microseconds and then sleep; an idle pool
uses no CPU time. A job ends when its work is done, not when every worker has come: one that the
system did not run may still read the job's arguments (and write nothing) until the pool is closed.
Their common memory is laid out in `team.py`; `lockstep.py` says how they divide work and how they
wait.

A pool does not survive fork(): the child has no workers. `run` there is refused.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from appliance.errors import EngineError
from appliance.kernels.runtime import quota, team
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable

SPIN_BETWEEN_JOBS = 200e-6
"""Seconds that workers spin after a job: about the gap between two tokens of a small model."""

SPIN_WITHIN_JOB = 50e-6
"""Seconds that a thread spins at the end of a phase: about the price of going to sleep and being woken."""

_CALIBRATION = 2000
_NO_JOB = 1  # the first generation: odd


class Pool:
    """`threads` threads (the caller's included; by default what CPU affinity and quota allow) and
    their kernels."""

    def __init__(self, table: KernelTable, threads: int | None = None,
                 farewell: Callable[[], None] = lambda: None) -> None:
        """Start the workers. `threads` 1 means none: `run` calls the kernel in the calling thread.
        `farewell` is the last that each worker does."""
        self.threads = quota.cpus() if threads is None else threads
        if not 1 <= self.threads <= quota.MOST:
            raise EngineError(f"a pool of {self.threads} threads", hint=f"between 1 and {quota.MOST}", code="threads")
        self._table = table
        self._memory = Memory(team.nbytes(self.threads))
        self.team = self._memory.address
        """Address of the shared block; kernels, which call `lockstep.claim`, find it in their arguments."""
        self._probe = Memory(64 + 128 * self.threads)
        self._kept = [self._probe]
        self._run = table.function("lockstep_run")
        self._lock, self._probing = threading.Lock(), threading.Lock()
        self._process = os.getpid()
        self._fill()
        self._farewell = farewell
        self._workers = self._start()
        self._finish = weakref.finalize(self, _stop, table, self._memory, self._workers, self._kept)

    def _fill(self) -> None:
        libc = ctypes.CDLL(None)
        words = self._memory.view("i8")
        words[team.SYSCALL // 8] = ctypes.cast(libc.syscall, ctypes.c_void_p).value or 0
        words[team.FUTEX // 8] = team.FUTEX_NUMBER[platform.machine()]
        words[team.THREADS // 8] = self.threads
        each = self._seconds_per_spin()
        spins = self._memory.view("i4")
        spins[(team.JOB + team.SPIN) // 4] = round(SPIN_BETWEEN_JOBS / each)
        spins[(team.PHASE + team.SPIN) // 4] = round(SPIN_WITHIN_JOB / each)
        spins[(team.JOB + team.GENERATION) // 4] = _NO_JOB

    def _seconds_per_spin(self) -> float:
        """The length of one spin differs ten-fold between CPU models: measure it (best of three,
        ~0.1 ms each)."""
        spin, best = self._table.function("lockstep_spin"), 1.0
        for _ in range(3):
            start = time.perf_counter()
            spin(self.team + team.PHASE, _CALIBRATION)
            best = min(best, time.perf_counter() - start)
        return max(best, 1e-6) / _CALIBRATION

    def _start(self) -> list[threading.Thread]:
        work, team, farewell = self._table.function("lockstep_work"), self.team, self._farewell  # but not the pool

        def live(index: int) -> None:
            work(team, index, _NO_JOB)
            farewell()

        workers = [threading.Thread(target=live, args=(index,), name=f"kernel-{index}", daemon=True)
                   for index in range(1, self.threads)]
        try:
            for worker in workers:
                worker.start()
        except RuntimeError as error:
            # Those that did start use memory that is about to be freed.
            _stop(self._table, self._memory, [worker for worker in workers if worker.is_alive()], [])
            raise EngineError(f"a pool of {self.threads} threads: {error}", code="threads",
                              hint="allow the process more threads (TasksMax in systemd, `--pids-limit` of a "
                                   "container, RLIMIT_NPROC) or more memory, or ask for fewer") from error
        return workers

    def run(self, kernel: int, arguments: int) -> None:
        """Run `void kernel(i64 thread, i64 threads, i64 arguments)` (an address) on all threads
        until its work is done.

        The memory of the arguments stays valid as long as the pool is open (`keep`).
        """
        if os.getpid() != self._process:
            raise EngineError("a kernel pool was used in a forked child", hint="make the pool after the fork",
                              code="threads")
        with self._lock:
            if not self._finish.alive:
                raise EngineError("the kernel pool is closed", code="threads")
            self._run(self.team, kernel, arguments)

    def keep(self, memory: Memory) -> None:
        """Hold a job's arguments until the last worker has ended, also when everything else is
        garbage."""
        self._kept.append(memory)

    def check(self, rounds: int = 16) -> None:
        """Run a kernel whose result is right only if all threads kept step; EngineError otherwise.
        """
        words = self._probe.view("i8")
        with self._probing:
            words[0], words[1] = self.team, rounds
            self.run(self._table.address("lockstep_probe"), self._probe.address)
            found = words[8 + 8 * (rounds & 1)::16].tolist()
        wanted = [(index + rounds) % self.threads + rounds for index in range(self.threads)]
        if found != wanted:
            raise EngineError(f"{self.threads} kernel threads do not keep step", code="threads",
                              hint="this CPU or virtual machine breaks memory order")

    def close(self) -> None:
        """Let the workers end and wait for them. Closing twice does nothing."""
        with self._lock:
            self._finish()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def _stop(table: KernelTable, memory: Memory, workers: list[Any], kept: list[Memory]) -> None:
    """End the workers; they hold no reference to the pool, so this also runs when the pool is
    garbage."""
    if not workers or not any(worker.is_alive() for worker in workers):
        return
    table.function("lockstep_stop")(memory.address)
    for worker in workers:
        worker.join()
    kept.clear()
