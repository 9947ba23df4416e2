"""Where things are in the memory that the threads of a pool share. Offsets in bytes; one writer per 64-byte line.

    0    constants: SYSCALL, FUTEX (address of libc's syscall(), number of the futex call), THREADS
    64   the job: FUNCTION, ARGUMENTS, STOP
    128  JOB event     a new generation starts a job
    192  DONE event    all threads have done their share
    256  BARRIER event for use inside kernels
"""

from __future__ import annotations

SYSCALL, FUTEX, THREADS = 0, 8, 16  # int64
FUNCTION, ARGUMENTS, STOP = 64, 72, 80  # int64
JOB, DONE, BARRIER = 128, 192, 256
NBYTES = 320

# Within an event: int32 words.
GENERATION, SLEEPERS, ARRIVED, SPIN = 0, 4, 8, 12

# Of futex(2): wait and wake among threads of one process.
FUTEX_WAIT, FUTEX_WAKE = 128 | 0, 128 | 1
FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
