"""System call numbers, as data: name -> (x86_64, aarch64); None where an architecture has no such
call.

From arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12;
numbers never change. A test compares them with the headers of the machine. Only calls that a rule
names stand here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Machine:
    """An architecture as seccomp(2) sees it."""

    name: str           # of uname(2)
    audit: int          # AUDIT_ARCH_* of linux/audit.h
    column: int         # of NUMBERS
    foreign_abi: int | None  # numbers from here on belong to another ABI of the same architecture (x32)


MACHINES: Final = {
    "x86_64": Machine("x86_64", 0xC000003E, 0, 0x40000000),
    "aarch64": Machine("aarch64", 0xC00000B7, 1, None),
}

NEWEST: Final = 462
"""The last call of Linux 6.12 on both; what comes after it is answered as an old kernel would: no such call."""

NUMBERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept": (43, 202), "accept4": (288, 242), "access": (21, None), "acct": (163, 89), "add_key": (248, 217),
    "adjtimex": (159, 171), "arch_prctl": (158, None), "bind": (49, 200), "bpf": (321, 280), "brk": (12, 214),
    "capset": (126, 91), "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_getres": (229, 114),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "clock_settime": (227, 112), "clone": (56, 220),
    "clone3": (435, 435), "close": (3, 57), "close_range": (436, 436), "connect": (42, 203),
    "create_module": (174, None), "delete_module": (176, 106), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "epoll_wait": (232, None), "eventfd2": (290, 19), "execve": (59, 221),
    "execveat": (322, 281), "exit": (60, 93), "exit_group": (231, 94), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fadvise64": (221, 223), "fanotify_init": (300, 262), "fcntl": (72, 25),
    "fdatasync": (75, 83), "finit_module": (313, 273), "flock": (73, 32), "fork": (57, None), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "fstat": (5, 80), "fstatfs": (138, 44),
    "fsync": (74, 82), "futex": (202, 98), "futex_waitv": (449, 449), "getcpu": (309, 168), "getcwd": (79, 17),
    "getdents": (78, None), "getdents64": (217, 61), "getegid": (108, 177), "geteuid": (107, 175),
    "getgid": (104, 176), "getpeername": (52, 205), "getpid": (39, 172), "getppid": (110, 173),
    "getrandom": (318, 278), "getrlimit": (97, 163), "getrusage": (98, 165), "getsockname": (51, 204),
    "getsockopt": (55, 209), "gettid": (186, 178), "gettimeofday": (96, 169), "getuid": (102, 174),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446),
    "listen": (50, 201), "lookup_dcookie": (212, 18), "lseek": (8, 62), "lstat": (6, None), "madvise": (28, 233),
    "map_shadow_stack": (453, 453), "membarrier": (324, 283), "memfd_create": (319, 279),
    "mincore": (27, 232), "mkdir": (83, None),
    "mkdirat": (258, 34), "mlock": (149, 228), "mlock2": (325, 284), "mmap": (9, 222), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "mprotect": (10, 226),
    "mremap": (25, 216), "munlock": (150, 229), "munmap": (11, 215), "name_to_handle_at": (303, 264),
    "nanosleep": (35, 101), "newfstatat": (262, 79), "nfsservctl": (180, 42), "open": (2, None),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat": (257, 56), "openat2": (437, 437),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pipe": (22, None), "pipe2": (293, 59), "pivot_root": (155, 41), "pkey_mprotect": (329, 288), "poll": (7, None),
    "ppoll": (271, 73), "prctl": (157, 167), "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pselect6": (270, 72), "ptrace": (101, 117), "pwrite64": (18, 68),
    "pwritev": (296, 70), "pwritev2": (328, 287), "quotactl": (179, 60), "read": (0, 63), "readahead": (187, 213),
    "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65), "reboot": (169, 142), "recvfrom": (45, 207),
    "recvmmsg": (299, 243), "recvmsg": (47, 212), "request_key": (249, 218), "restart_syscall": (219, 128),
    "rmdir": (84, None), "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigpending": (127, 136),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigtimedwait": (128, 137),
    "sched_getaffinity": (204, 123), "sched_yield": (24, 124), "seccomp": (317, 277),
    "select": (23, None), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setdomainname": (171, 162), "setfsgid": (123, 152),
    "setfsuid": (122, 151), "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161),
    "setns": (308, 268), "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147),
    "setreuid": (113, 145), "setrlimit": (160, 164), "setsockopt": (54, 208), "settimeofday": (164, 170),
    "setuid": (105, 146), "shutdown": (48, 210), "sigaltstack": (131, 132), "socket": (41, 198),
    "socketpair": (53, 199), "stat": (4, None), "statfs": (137, 43), "statx": (332, 291), "swapoff": (168, 225),
    "swapon": (167, 224), "sysinfo": (99, 179), "syslog": (103, 116), "tgkill": (234, 131), "time": (201, None),
    "times": (100, 153), "umask": (95, 166), "umount2": (166, 39), "uname": (63, 160), "unlink": (87, None),
    "unlinkat": (263, 35), "unshare": (272, 97), "uselib": (134, None), "userfaultfd": (323, 282),
    "vfork": (58, None), "vhangup": (153, 58), "wait4": (61, 260), "waitid": (247, 95), "write": (1, 64),
    "writev": (20, 66),
}


def number(name: str, machine: Machine) -> int | None:
    """The number of a call; None where the architecture has none. KeyError for a name that is not
    in the table."""
    return NUMBERS[name][machine.column]
