"""The thread pool: lock-step, idle cost, oversubscription, shutdown."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import subprocess
import sys
import threading
import time

import pytest

from appliance.errors import EngineError
from appliance.kernels.runtime import memory, table, team, threads
from tests.support import waiting
from tests.support.environment import unmeasured


@pytest.fixture(scope="module")
def kernels():
    """The kernels of this CPU."""
    return table.load()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("rounds", [0, 1, 100])
def test_threads_keep_step(kernels, count, rounds):
    """After each barrier every thread sees its neighbour's value, also with more threads than CPUs."""
    with threads.Pool(kernels, count) as pool:
        for _ in range(5):
            pool.check(rounds)


class Deserted(threads.Pool):
    """A pool whose workers the system never runs."""

    def _start(self):
        return []


@pytest.mark.parametrize("count", [2, 5])
def test_nobody_waits_for_a_thread_without_a_cpu(kernels, count):
    """A job is done, and right, although all threads but the caller's never come."""
    with Deserted(kernels, count) as pool:
        for _ in range(20):
            pool.check(10)


def test_latecomers_find_their_job_over(kernels):
    """Workers that come after jobs have ended, or in the middle of one, do not disturb it."""
    with Deserted(kernels, 4) as pool:
        pool.check(100)
        pool._workers += threads.Pool._start(pool)
        for _ in range(500):
            pool.check(7)


def test_many_short_jobs(kernels):
    """Thousands of jobs in a row neither hang nor lose a share."""
    with threads.Pool(kernels, 2) as pool:
        for _ in range(3000):
            pool.check(1)


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_go_on_when_their_number_wraps(kernels, count):
    """The job at which the 32 bits of its number overflow, after 2^30 passes, is done like any other."""
    with threads.Pool(kernels, count) as pool:
        ctypes.c_int32.from_address(pool.team + team.JOB + team.GENERATION).value = 2**31 - 5  # odd: no job runs
        for rounds in range(6):  # each leaves another result than the one before
            pool.check(rounds)


PHASES_WRAP = """
import ctypes, sys
from appliance.kernels.runtime import table, team, threads
with threads.Pool(table.load(), int(sys.argv[1])) as pool:
    last = 2**39 - 20
    ctypes.c_int64.from_address(pool.team + team.CLAIMED).value = last << team.UNIT_BITS
    ctypes.c_int32.from_address(pool.team + team.PHASE + team.GENERATION).value = last  # its low 32 bits
    for rounds in range(9, 15):
        pool.check(rounds)
print("done")
"""


@pytest.mark.parametrize("count", [1, 2])
def test_phases_go_on_when_their_number_wraps(count):
    """The phase at which the 40 bits of its number overflow, after months of a small model, ends like any other."""
    done = subprocess.run([sys.executable, "-c", PHASES_WRAP, str(count)], capture_output=True, text=True, timeout=600,
                          check=True)
    assert done.stdout == "done\n"


def test_jobs_after_sleep(kernels):
    """Workers that have gone to sleep wake for the next job."""
    with threads.Pool(kernels, 3) as pool:
        for _ in range(20):
            time.sleep(0.003)
            pool.check(3)


IDLE = """
import time
from appliance.kernels.runtime import table, threads
with threads.Pool(table.load()) as pool:
    pool.check()
    start = time.process_time()
    time.sleep(1)
    print(time.process_time() - start)
"""


def test_idle_pool_uses_no_cpu():
    """A second of idleness costs less than 5% of one CPU, in a process that has nothing else to do."""
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True, env=unmeasured())
    assert float(done.stdout) < 0.05


def test_callers_take_turns(kernels):
    """Two threads that use one pool are served one after the other."""
    failures = []

    def caller(pool):
        try:
            for _ in range(200):
                pool.check(2)
        except EngineError as error:
            failures.append(error)

    with threads.Pool(kernels, 2) as pool:
        callers = [threading.Thread(target=caller, args=(pool,)) for _ in range(2)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
    assert failures == []


def test_closed_pool_is_refused(kernels):
    """After close the workers are gone and a job is refused; closing again does nothing."""
    pool = threads.Pool(kernels, 3)
    pool.check()
    pool.close()
    pool.close()
    assert not any(worker.is_alive() for worker in pool._workers)
    with pytest.raises(EngineError, match="closed"):
        pool.check()


def test_forgotten_pool_ends(kernels):
    """A pool that nobody refers to lets its workers go."""
    pool = threads.Pool(kernels, 2)
    workers = pool._workers
    del pool
    gc.collect()
    workers[0].join(waiting.STALL_SECONDS)
    assert not workers[0].is_alive()


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_absurd_thread_counts(kernels, count):
    """A pool has at least the caller's thread and a sane number of others."""
    with pytest.raises(EngineError, match="threads"):
        threads.Pool(kernels, count)


FEW = """
import resource, threading
from pathlib import Path
from appliance.kernels.runtime import table, threads
from appliance.errors import EngineError
kernels, stack = table.load(), 64 << 20
threading.stack_size(stack)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 8 * stack, -1))  # has room for a few stacks
try:
    threads.Pool(kernels, 64)
except EngineError as error:
    print(error.code, len(threading.enumerate()))
"""


def test_a_pool_that_gets_too_few_threads_is_refused():
    """Where the system gives fewer threads than were asked for, that is an error, and those that came have ended."""
    done = subprocess.run([sys.executable, "-c", FEW], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "threads 1\n"


def test_forked_child_is_refused(kernels):
    """A child has no workers: a job there is an error instead of waiting for ever."""
    with threads.Pool(kernels, 2) as pool:
        child = os.fork()
        if child == 0:
            try:
                pool.check()
            except EngineError:
                os._exit(7)
            os._exit(1)
        assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        pool.check()


def test_a_process_ends_without_closing():
    """A program that forgets its pool ends at once, with exit code 0."""
    code = ("from appliance.kernels.runtime import table, threads; "
            "pool = threads.Pool(table.load(), 3); pool.check(); print('done')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "done\n"


def rate(pool: threads.Pool, seconds: float) -> float:
    """Seconds of the mean job of 50 rounds."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        pool.check(50)
        times.append(time.perf_counter() - start)
    return statistics.fmean(times)


@pytest.mark.slow
def test_oversubscribed_machine_does_not_collapse(kernels):
    """With three busy processes a CPU, a job with 50 barriers takes milliseconds, not time slices times barriers."""
    cpus = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * cpus)]
    try:
        time.sleep(0.3)
        with threads.Pool(kernels, cpus) as pool:
            assert rate(pool, 2) < 0.2
        with threads.Pool(kernels, 4 * cpus) as pool:
            assert rate(pool, 1) < 1
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_arguments_survive_the_call(kernels):
    """A job's arguments block is read by every thread from the address given."""
    with threads.Pool(kernels, 2) as pool:
        block = memory.Memory(64 + 256)
        words = block.view("i8")
        words[0], words[1] = pool.team, 4
        pool.run(kernels.address("lockstep_probe"), block.address)
        assert [4, 5] == sorted(words[8::16].tolist())
