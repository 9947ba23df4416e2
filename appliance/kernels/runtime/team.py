"""Where things are in the memory that the threads of a pool share. Offsets in bytes; one purpose
per 64-byte line.

    0    constants: SYSCALL, FUTEX (address of libc's syscall(), number of the futex call), THREADS
    64   the job: FUNCTION, ARGUMENTS, STOP, FIRST_PHASE
    128  JOB event     its generation is even while a job runs and odd between jobs
    192  PHASE event   its generation is the number of the current phase (its low 32 bits)
    256  CLAIMED       the number of the current phase, and how many of its units are claimed
    320  DONE          how many units of the current phase are done
    384  a line for each thread, which only that thread touches
"""

from __future__ import annotations

SYSCALL, FUTEX, THREADS = 0, 8, 16  # int64
FUNCTION, ARGUMENTS, STOP, FIRST_PHASE = 64, 72, 80, 88  # int64
JOB, PHASE = 128, 192
CLAIMED = 256  # int64: phase << UNIT_BITS | units claimed
DONE = 320  # int32
LINES = 384
LINE_NBYTES = 64
UNIT_BITS = 24
UNIT_MASK = (1 << UNIT_BITS) - 1

# Within an event: int32 words.
GENERATION, SLEEPERS, SPIN = 0, 4, 8

# Within a thread's line: int64 words. The phase it is in, units of it that it claimed, generation
# of its job.
AT, TAKEN, WITHIN = 0, 8, 16

# Of futex(2): wait and wake among threads of one process.
FUTEX_WAIT, FUTEX_WAKE = 128 | 0, 128 | 1
FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}


def nbytes(threads: int) -> int:
    """Size of the memory of a pool."""
    return LINES + LINE_NBYTES * threads
