"""Kernels that run other kernels on several threads in lock-step: spin briefly, then sleep.

An *event* is a 64-byte line: a word that changes (its generation), the number of sleepers, the longest spin. Who
waits for a change spins first (a thread that runs answers within a microsecond) and then sleeps in the kernel
(futex), so that waiting costs no more than the spin when there are more runnable threads than CPUs, and nothing when
there is no work.

No wake-up can be lost: a sleeper announces itself before the futex call compares the generation again; a waker
changes the generation before it looks for sleepers; all four accesses are sequentially consistent.

Layout of an event and of a team (below) in bytes; `threads.py` allocates and fills them.
"""

from __future__ import annotations

from appliance.engine.kernels.atomic import (
    add,
    call_part,
    call_syscall,
    load,
    load_address,
    pause,
    store,
    store_address,
)
from appliance.engine.kernels.jit import device
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.team import (
    ARGUMENTS,
    ARRIVED,
    BARRIER,
    DONE,
    FUNCTION,
    FUTEX,
    FUTEX_WAIT,
    FUTEX_WAKE,
    GENERATION,
    JOB,
    SLEEPERS,
    SPIN,
    STOP,
    SYSCALL,
    THREADS,
)


@device
def wait(team: int, event: int, seen: int) -> int:
    """Wait until the generation of an event differs from `seen`; the new generation."""
    left = load(event + SPIN)
    now = load(event + GENERATION)
    while now == seen and left > 0:
        pause()
        left -= 1
        now = load(event + GENERATION)
    while now == seen:
        add(event + SLEEPERS, 1)
        call_syscall(load_address(team + SYSCALL), load_address(team + FUTEX), event + GENERATION, FUTEX_WAIT, seen)
        add(event + SLEEPERS, -1)
        now = load(event + GENERATION)
    return now


@device
def signal(team: int, event: int) -> None:
    """Change the generation of an event and wake who sleeps on it."""
    add(event + GENERATION, 1)
    if load(event + SLEEPERS) > 0:
        call_syscall(load_address(team + SYSCALL), load_address(team + FUTEX), event + GENERATION, FUTEX_WAKE, 1 << 30)


@device
def meet(team: int, event: int, threads: int) -> None:
    """Wait at an event until all threads have come; what they wrote before is then visible to all."""
    if threads > 1:
        seen = load(event + GENERATION)
        if add(event + ARRIVED, 1) == threads - 1:
            store(event + ARRIVED, 0)
            signal(team, event)
        else:
            wait(team, event, seen)


@device
def barrier(team: int, threads: int) -> None:
    """For kernels that a pool runs: wait for all threads. `team` is `Pool.team`, which goes into the arguments."""
    meet(team, team + BARRIER, threads)


@kernel("lockstep_run", "void(i8,i8,i8)")
def lockstep_run(team: int, function: int, arguments: int) -> None:
    """The calling thread's part as thread 0: start the job, do the first share, wait until all are done."""
    threads = load_address(team + THREADS)
    store_address(team + FUNCTION, function)
    store_address(team + ARGUMENTS, arguments)
    signal(team, team + JOB)
    call_part(function, 0, threads, arguments)
    meet(team, team + DONE, threads)


@kernel("lockstep_work", "void(i8,i8,i4)")
def lockstep_work(team: int, thread: int, seen: int) -> None:
    """A worker's whole life: from the generation `seen` on, do each job's share, until the job is to stop."""
    while True:
        seen = wait(team, team + JOB, seen)
        if load_address(team + STOP) != 0:
            return
        threads = load_address(team + THREADS)
        call_part(load_address(team + FUNCTION), thread, threads, load_address(team + ARGUMENTS))
        meet(team, team + DONE, threads)


@kernel("lockstep_stop", "void(i8)")
def lockstep_stop(team: int) -> None:
    """Let every worker return."""
    store_address(team + STOP, 1)
    signal(team, team + JOB)


@kernel("lockstep_spin", "void(i8,i4)")
def lockstep_spin(event: int, count: int) -> None:
    """Spin as `wait` does, `count` times, for calibration."""
    now = load(event + GENERATION)
    while now == load(event + GENERATION) and count > 0:
        pause()
        count -= 1


@kernel("lockstep_probe", "void(i8,i8,i8)")
def lockstep_probe(thread: int, threads: int, arguments: int) -> None:
    """Show that threads run in lock-step: each adds, in turn of the rounds, what its neighbour wrote before.

    Arguments (int64): team, rounds, then a pair of 64-byte lines for each thread, used in odd and even rounds. Every
    thread starts from its own index; in each round it takes its neighbour's value plus one.
    """
    team, rounds = load_address(arguments), load_address(arguments + 8)
    lines = arguments + 64
    store_address(lines + thread * 128, thread)
    barrier(team, threads)
    for i in range(rounds):
        neighbour = (thread + 1) % threads
        seen = load_address(lines + neighbour * 128 + (i & 1) * 64)
        store_address(lines + thread * 128 + ((i + 1) & 1) * 64, seen + 1)
        barrier(team, threads)
