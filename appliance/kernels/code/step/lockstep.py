"""Kernels that run other kernels on several threads, phase by phase, where nobody waits for a
thread without a CPU.

A job is a kernel that all threads run. It is a row of *phases*, and a phase is a number of *units*
of work that are independent of each other. Threads claim units until there are none left; a phase
is over when all its units are done, whoever did them. So a thread that the system does not run
delays the others only while it holds units. The others do the rest, and when it comes back it finds
the phases over and claims nothing in them. The caller does not wait for it either: it may still run
through an old job when the next has begun.

Hence the rule for kernels: *outside of claimed units they write nothing, and read only words of
their arguments and what these lead to that never changes.* A claim succeeds only in the phase and
the job that the thread is in. CLAIMED is compared and exchanged as a whole, and a phase's number
comes again after 2^40 others at the earliest. The caller changes the job's generation when the job
ends; it is looked at after CLAIMED and the arguments were read. A thread that reads arguments which
were already changed for the next job can therefore do no harm, wherever they lead it.

Waiting: an *event* is a 64-byte line: a word that changes (its generation), the number of sleepers,
the longest spin. A waiting thread spins first (a running one answers within a microsecond) and then
sleeps in the kernel (futex). So waiting costs no more than the spin when there are more runnable
threads than CPUs, and nothing when there is no work. No wake-up can be lost: a sleeper announces
itself before the futex call compares the generation again; a waker changes the generation before it
looks for sleepers; all four accesses are sequentially consistent.

Layout of what threads share: `team.py`; `threads.py` allocates and fills it.
"""

from __future__ import annotations

import numpy as np

from appliance.kernels.compiler import atomic
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import get_i64, set_i64
from appliance.kernels.runtime import team as at


@device
def wait(team: int, event: int, seen: int) -> int:
    """Wait until the generation of an event differs from `seen`; the new generation."""
    left = atomic.load(event + at.SPIN)
    now = atomic.load(event + at.GENERATION)
    while now == seen and left > 0:
        atomic.pause()
        left -= 1
        now = atomic.load(event + at.GENERATION)
    while now == seen:
        atomic.add(event + at.SLEEPERS, 1)
        atomic.call_syscall(get_i64(team + at.SYSCALL), get_i64(team + at.FUTEX), event + at.GENERATION, at.FUTEX_WAIT,
                            seen)
        atomic.add(event + at.SLEEPERS, -1)
        now = atomic.load(event + at.GENERATION)
    return now


@device
def signal(team: int, event: int) -> None:
    """Change the generation of an event and wake who sleeps on it."""
    atomic.add(event + at.GENERATION, 1)
    if atomic.load(event + at.SLEEPERS) > 0:
        atomic.call_syscall(get_i64(team + at.SYSCALL), get_i64(team + at.FUTEX), event + at.GENERATION, at.FUTEX_WAKE,
                            1 << 30)


@device
def within(team: int, line: int) -> bool:
    """Whether a thread's job still runs: if not, what it read of the arguments until now may be the
    next job's."""
    atomic.loads_before()
    return atomic.load(team + at.JOB + at.GENERATION) == get_i64(line + at.WITHIN)


@device(inline=False)
def claim(team: int, thread: int, total: int, grain: int) -> tuple[int, int]:
    """Units first <= unit < last of the current phase, which has `total`, for this thread to do;
    none: first == last.

    A claim starts at a multiple of `grain`. Of 15/16 each thread claims its share in one piece,
    since a stream of weights is slow at its beginning; then ever less is claimed towards the end.
    With a `grain` of 0 it is one unit after the other: a disk reads best what all threads want in
    one order.
    """
    line, threads = team + at.LINES + at.LINE_NBYTES * thread, get_i64(team + at.THREADS)
    now = atomic.load_long(team + at.CLAIMED)
    while now >> at.UNIT_BITS == get_i64(line + at.AT) and within(team, line):
        first = now & at.UNIT_MASK
        if first >= total:
            break
        count = total if threads == 1 else total * 15 // (16 * threads)
        if threads > 1 and first + count > total * 15 // 16:
            count = (total - first) // (2 * threads)
        if grain == 0:
            count = 1
        elif count > 0:
            count = (count + grain - 1) // grain * grain
        else:
            count = grain
        count = min(count, total - first)
        seen = atomic.exchange_long(team + at.CLAIMED, now, now + count)
        if seen == now:
            set_i64(line + at.TAKEN, get_i64(line + at.TAKEN) + count)
            return first, first + count
        now = seen
    return total, total


@device(inline=False)
def finish(team: int, thread: int, total: int) -> None:
    """End this thread's part in a phase of `total` > 0 units, of which it can claim no more, and
    wait for its end.

    Every thread's writes in the phase are then visible to all.
    """
    line = team + at.LINES + at.LINE_NBYTES * thread
    phase, taken = get_i64(line + at.AT), get_i64(line + at.TAKEN)
    # As `claim` finds it: it wraps, once in 2^40 phases.
    set_i64(line + at.AT, (phase + 1) << at.UNIT_BITS >> at.UNIT_BITS)
    set_i64(line + at.TAKEN, 0)
    if taken > 0 and atomic.add(team + at.DONE, np.int32(taken)) + taken == total:
        atomic.store(team + at.DONE, 0)
        atomic.store_long(team + at.CLAIMED, (phase + 1) << at.UNIT_BITS)
        signal(team, team + at.PHASE)
    elif within(team, line):
        wait(team, team + at.PHASE, np.int32(phase))


@device
def enter(team: int, thread: int, generation: int, phase: int) -> None:
    """Let a thread take part in a job from its first phase on."""
    line = team + at.LINES + at.LINE_NBYTES * thread
    set_i64(line + at.WITHIN, generation)
    set_i64(line + at.AT, phase)
    set_i64(line + at.TAKEN, 0)


@kernel("lockstep_run", "void(i8,i8,i8)")
def lockstep_run(team: int, function: int, arguments: int) -> None:
    """The calling thread's part as thread 0: start the job, take part; its last phase is over when
    it returns."""
    phase = atomic.load_long(team + at.CLAIMED) >> at.UNIT_BITS
    atomic.store_long(team + at.FUNCTION, function)
    atomic.store_long(team + at.ARGUMENTS, arguments)
    atomic.store_long(team + at.FIRST_PHASE, phase)
    # The sum has 64 bits, and the word wraps.
    enter(team, 0, np.int32(atomic.load(team + at.JOB + at.GENERATION) + 1), phase)
    signal(team, team + at.JOB)
    atomic.call_part(function, 0, get_i64(team + at.THREADS), arguments)
    atomic.add(team + at.JOB + at.GENERATION, 1)  # nobody need wake up for that


@kernel("lockstep_work", "void(i8,i8,i4)")
def lockstep_work(team: int, thread: int, seen: int) -> None:
    """A worker's whole life: from the generation `seen` on, take part in jobs, until it is to stop.
    """
    while True:
        seen = wait(team, team + at.JOB, seen)
        if atomic.load_long(team + at.STOP) != 0:
            return
        function, arguments = atomic.load_long(team + at.FUNCTION), atomic.load_long(team + at.ARGUMENTS)
        phase = atomic.load_long(team + at.FIRST_PHASE)
        # These words change only while the generation is odd.
        if seen & 1 == 0 and atomic.load(team + at.JOB + at.GENERATION) == seen:
            enter(team, thread, seen, phase)
            atomic.call_part(function, thread, get_i64(team + at.THREADS), arguments)


@kernel("lockstep_stop", "void(i8)")
def lockstep_stop(team: int) -> None:
    """Let every worker return."""
    atomic.store_long(team + at.STOP, 1)
    signal(team, team + at.JOB)


@kernel("lockstep_spin", "void(i8,i4)")
def lockstep_spin(event: int, count: int) -> None:
    """Spin as `wait` does, `count` times, for calibration."""
    now = atomic.load(event + at.GENERATION)
    while now == atomic.load(event + at.GENERATION) and count > 0:
        atomic.pause()
        count -= 1


@kernel("lockstep_probe", "void(i8,i8,i8)")
def lockstep_probe(thread: int, threads: int, arguments: int) -> None:
    """Show that threads run in lock-step: in each round every line gets what its neighbour had
    before, plus one.

    Arguments (int64): team, rounds, then a pair of 64-byte lines for each thread, used in odd and
    even rounds. Every line starts from its own index. The thread that claims a line serves it.
    """
    team, rounds = get_i64(arguments), get_i64(arguments + 8)
    lines = arguments + 64
    first, last = claim(team, thread, threads, 1)
    while first < last:
        for index in range(first, last):
            set_i64(lines + index * 128, index)
        first, last = claim(team, thread, threads, 1)
    finish(team, thread, threads)
    for i in range(rounds):
        first, last = claim(team, thread, threads, 1)
        while first < last:
            for index in range(first, last):
                seen = get_i64(lines + (index + 1) % threads * 128 + (i & 1) * 64)
                set_i64(lines + index * 128 + ((i + 1) & 1) * 64, seen + 1)
            first, last = claim(team, thread, threads, 1)
        finish(team, thread, threads)
