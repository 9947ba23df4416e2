"""Which system calls the process may make, stage by stage.

A filter cannot be taken back; each stage adds one that allows less, and the strictest wins. `boot`
begins before any thread and ends when the keys are there; `load` until the service listens; `serve`
for the rest. A call that no list names is answered with EPERM. A call that no stage could ever
want, and an intruder would, ends the process (`KILLED`).
"""

from __future__ import annotations

import os
import socket
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from appliance.sandbox.bpf import ENOSYS, KILL, CallRule, Condition

Stage = Literal["boot", "load", "serve"]


def _calls(names: str) -> frozenset[str]:
    return frozenset(names.split())


ALWAYS: Final = _calls("""
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range fsync fdatasync
    fadvise64 readahead flock fstat newfstatat stat lstat statx statfs fstatfs access faccessat faccessat2 readlink
    readlinkat getcwd getdents getdents64 unlink unlinkat umask dup dup2 dup3 pipe pipe2 eventfd2
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    brk munmap mremap madvise mincore mlock mlock2 munlock membarrier
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait sigaltstack restart_syscall
    futex futex_waitv sched_yield sched_getaffinity getcpu set_robust_list set_tid_address rseq exit exit_group
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage getrlimit sysinfo uname
    getpid gettid getppid getuid geteuid getgid getegid getrandom
    listen accept accept4 recvfrom recvmsg shutdown getsockname getpeername getsockopt setsockopt
""")

PREPARING: Final = _calls("""
    bind connect seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self setrlimit arch_prctl
""")

WAITING: Final = _calls("wait4 waitid")
"""For the process that fetches keys from the policy's broker, which was started before; gone from stage `load` on."""

FOLDERS: Final = _calls("mkdir mkdirat rmdir")
"""A report is asked for by making a folder (configfs-tsm), so on hardware platforms these stay; Landlock says where."""

KILLED: Final = _calls("""
    execve execveat ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open pidfd_getfd
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register map_shadow_stack pkey_mprotect
    keyctl add_key request_key capset personality
    setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid
    mount umount2 mount_setattr move_mount fsopen fsconfig fsmount fspick open_tree pivot_root chroot unshare setns
    open_by_handle_at name_to_handle_at fanotify_init quotactl acct swapon swapoff syslog lookup_dcookie nfsservctl
    init_module finit_module delete_module create_module uselib kexec_load kexec_file_load reboot iopl ioperm modify_ldt
    settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup
""")

NO_SUCH_CALL: Final = ("clone3", "openat2")
"""Their arguments lie in memory, where a filter cannot look; the C library falls back to the older call."""

# Values of the kernel's headers that Python has no name for
_PROT_WRITE, _PROT_EXEC, _MAP_ANONYMOUS = 2, 4, 0x20
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020000
_MSG_FASTOPEN = 0x20000000
_PR_SET_MDWE, _PR_SET_NAME, _PR_GET_NAME, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 65, 15, 16, 4, 38
_PR_GET_DUMPABLE, _PR_GET_SECCOMP, _PR_CAPBSET_READ, _PR_GET_NO_NEW_PRIVS, _PR_GET_MDWE = 3, 21, 23, 39, 66
_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 0x1023, 18  # asm/prctl.h and the number of AMX's state
_IOCTLS = (termios.TCGETS, termios.TIOCGWINSZ, termios.FIONBIO, termios.FIONREAD, termios.FIOCLEX, termios.FIONCLEX)
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1034)  # duplicate, flags, locks, F_DUPFD_CLOEXEC, F_GET_SEALS
_ADD_SEALS = 1033
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)


@dataclass(frozen=True)
class Needs:
    """The needs of a policy beyond those of every service."""

    compiling: bool = False   # kernels are compiled at run time: pages become executable
    child: int | None = None  # the process that fetches keys: it may be waited for and killed
    devices: bool = False     # reports are made through configfs or a TPM: files are opened for writing while serving
    foreign: bool = False     # llama.cpp may run a model (development): it is given a file in memory
    families: frozenset[int] = frozenset({socket.AF_INET, socket.AF_INET6, socket.AF_UNIX})  # of listeners


def _any(argument: int, values: tuple[int, ...]) -> tuple[tuple[Condition, ...], ...]:
    return tuple((Condition(argument, value),) for value in values)


def _memory(stage: Stage, needs: Needs) -> Iterator[CallRule]:
    """Executable pages: none while serving; before that only those of files that are mapped to be
    run: libraries."""
    if needs.compiling:
        yield CallRule("mmap")
        yield CallRule("mprotect")
        return
    plain = (Condition(2, 0, _PROT_EXEC),)
    library = (Condition(2, _PROT_EXEC, _PROT_EXEC | _PROT_WRITE), Condition(3, 0, _MAP_ANONYMOUS))
    yield CallRule("mmap", (plain,) if stage == "serve" else (plain, library))
    yield CallRule("mprotect", (plain,))


def _processes(stage: Stage, needs: Needs) -> Iterator[CallRule]:
    """Threads, no processes; signals to this process alone, and to the one that fetches keys as
    long as it may run."""
    child = () if needs.child is None or stage != "boot" else (needs.child,)
    yield CallRule("clone", ((Condition(0, _CLONE_THREAD, _CLONE_THREAD), Condition(0, 0, _CLONE_NAMESPACES)),))
    yield CallRule("tgkill", ((Condition(0, os.getpid()),),))
    yield CallRule("kill", _any(0, (os.getpid(), *child)))
    preparing = (_PR_SET_MDWE, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS)
    always = (_PR_SET_NAME, _PR_GET_NAME, _PR_GET_DUMPABLE, _PR_GET_SECCOMP, _PR_CAPBSET_READ, _PR_GET_NO_NEW_PRIVS,
              _PR_GET_MDWE)
    yield CallRule("prctl", _any(0, always if stage == "serve" else always + preparing))
    if needs.foreign and stage == "serve":  # built for AMX, llama.cpp asks for tile registers again in every pass
        yield CallRule("arch_prctl", ((Condition(0, _ARCH_REQ_XCOMP_PERM), Condition(1, _XFEATURE_XTILEDATA)),))
    reading = (Condition(2, 0, (1 << 64) - 1),) if stage == "serve" else ()
    yield CallRule("prlimit64", tuple((Condition(0, whose), *reading) for whose in (0, os.getpid())))


def _files(stage: Stage, needs: Needs) -> Iterator[CallRule]:
    """Files are opened for reading alone while serving; Landlock says which."""
    for name, argument in (("open", 1), ("openat", 2)):
        reading = stage == "serve" and not needs.devices
        yield CallRule(name, ((Condition(argument, 0, _WRITING),),) if reading else ((),))
    keeping = needs.foreign and stage != "serve"
    yield CallRule("fcntl", _any(1, (*_FCNTLS, _ADD_SEALS) if keeping else _FCNTLS))
    if keeping:
        yield CallRule("memfd_create")
    yield CallRule("ioctl", _any(1, _IOCTLS))
    if needs.devices:
        yield from (CallRule(name) for name in sorted(FOLDERS))


def _sockets(stage: Stage, needs: Needs) -> Iterator[CallRule]:
    """Sockets are made before serving, of the policy's kinds; nothing is ever sent to an address of
    one's choice. The address of sendmsg lies in memory: so each socket is a stream, which takes
    none, a pair of them, too."""
    yield CallRule("socketpair", ((Condition(0, socket.AF_UNIX), Condition(1, socket.SOCK_STREAM, 0xF)),))
    if stage != "serve":
        protocols = (0, socket.IPPROTO_TCP)  # no other on top of a stream: Landlock judges TCP alone
        yield CallRule("socket", tuple(
            (Condition(0, family), Condition(1, socket.SOCK_STREAM, 0xF), Condition(2, protocol))
            for family in sorted(needs.families) for protocol in protocols))
    yield CallRule("sendto", ((Condition(4, 0, (1 << 64) - 1), Condition(3, 0, _MSG_FASTOPEN)),))
    yield CallRule("sendmsg", ((Condition(2, 0, _MSG_FASTOPEN),),))


def rules(stage: Stage, needs: Needs) -> list[CallRule]:
    """Every rule of a stage, calls with conditions first: the kernel remembers the answers for all
    others."""
    allowed = set(ALWAYS)
    if stage != "serve":
        allowed |= PREPARING
    if stage == "boot" and needs.child is not None:
        allowed |= WAITING
    found = [*_memory(stage, needs), *_processes(stage, needs), *_files(stage, needs), *_sockets(stage, needs)]
    found += [CallRule(name, (), ENOSYS) for name in NO_SUCH_CALL]
    found += [CallRule(name) for name in sorted(allowed)]
    found += [CallRule(name, (), KILL) for name in sorted(KILLED - allowed)]
    return found
