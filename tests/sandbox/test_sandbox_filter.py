"""The filter of system calls, run by an interpreter of its own, for both architectures; numbers against the headers."""

from __future__ import annotations

import os

import pytest

from appliance.sandbox import bpf, calls, syscalls
from appliance.sandbox.bpf import ALLOW, ENOSYS, EPERM, KILL, CallRule, Condition, assemble
from appliance.sandbox.calls import Needs, Stage, rules
from tests.support.bpf_machine import run
from tests.support.unistd import numbers

X86, ARM = syscalls.MACHINES["x86_64"], syscalls.MACHINES["aarch64"]
AUDIT_X86, AUDIT_ARM, AUDIT_I386 = 0xC000003E, 0xC00000B7, 0x40000003  # linux/audit.h, linux/elf-em.h
PLAIN, CHILD, DEVICES, COMPILING = Needs(), Needs(child=77), Needs(devices=True), Needs(compiling=True)
FOREIGN = Needs(foreign=True)
STAGES = ("boot", "load", "serve")
RDWR, CREAT = 2, 0o100
THREAD = 0x3D0F00  # what the C library starts a thread with: VM|FS|FILES|SIGHAND|THREAD|SYSVSEM|SETTLS|…
TOP = 1 << 32


def _verdict(stage: Stage, needs: Needs, machine: syscalls.Machine, number: int, *arguments: int) -> int:
    return run(assemble(rules(stage, needs), machine), number, machine.audit, arguments)


@pytest.mark.parametrize("name", sorted(syscalls.NUMBERS))
@pytest.mark.parametrize("machine", [X86, ARM], ids=lambda machine: machine.name)
def test_numbers_are_those_of_the_headers(machine: syscalls.Machine, name: str) -> None:
    """Our table says what the kernel's headers on this machine say, as far as they are as new."""
    known = numbers(machine.name)
    found = syscalls.number(name, machine)
    newer = found is not None and found > max(known.values())
    assert known.get(name, found if newer else None) == found


# stage, needs, x86_64 number, aarch64 number (None: no such call), arguments, verdict. Numbers are typed in here.
CASES = [
    ("serve", PLAIN, 0, 63, (), ALLOW),                              # read
    ("serve", PLAIN, 59, 221, (), KILL),                             # execve
    ("boot", PLAIN, 59, 221, (), KILL),
    ("boot", CHILD, 59, 221, (), KILL),
    ("serve", PLAIN, 101, 117, (), KILL),                            # ptrace
    ("serve", PLAIN, 257, 56, (0, 0, 0), ALLOW),                     # openat, reading
    ("serve", PLAIN, 257, 56, (0, 0, RDWR), EPERM),
    ("serve", PLAIN, 257, 56, (0, 0, CREAT), EPERM),
    ("serve", PLAIN, 257, 56, (0, 0, RDWR | TOP), EPERM),            # bits that an int loses change nothing
    ("serve", DEVICES, 257, 56, (0, 0, RDWR), ALLOW),
    ("serve", PLAIN, 83, None, (), EPERM),                           # mkdir
    ("serve", DEVICES, 83, None, (), ALLOW),
    ("serve", PLAIN, 56, 220, (THREAD,), ALLOW),                     # clone
    ("serve", PLAIN, 56, 220, (17,), EPERM),                         # a process
    ("serve", PLAIN, 56, 220, (THREAD | 0x10000000,), EPERM),        # a thread in a namespace
    ("boot", CHILD, 56, 220, (17,), EPERM),
    ("boot", CHILD, 61, 260, (), ALLOW),                             # wait4
    ("load", CHILD, 61, 260, (), EPERM),
    ("boot", PLAIN, 61, 260, (), EPERM),
    ("boot", CHILD, 62, 129, (77, 9), ALLOW),                        # kill
    ("boot", CHILD, 62, 129, (78, 9), EPERM),
    ("load", CHILD, 62, 129, (77, 9), EPERM),
    ("serve", PLAIN, 435, 435, (), ENOSYS),                          # clone3
    ("serve", PLAIN, 9, 222, (0, 4096, 3, 0x22), ALLOW),             # mmap, read and write
    ("serve", PLAIN, 9, 222, (0, 4096, 5, 2), EPERM),                # read and execute, from a file
    ("boot", PLAIN, 9, 222, (0, 4096, 5, 2), ALLOW),
    ("boot", PLAIN, 9, 222, (0, 4096, 7, 2), EPERM),
    ("boot", PLAIN, 9, 222, (0, 4096, 5, 0x22), EPERM),              # anonymous
    ("serve", COMPILING, 9, 222, (0, 4096, 7, 0x22), ALLOW),
    ("boot", PLAIN, 10, 226, (0, 4096, 5), EPERM),                   # mprotect
    ("serve", PLAIN, 10, 226, (0, 4096, 1), ALLOW),
    ("boot", PLAIN, 41, 198, (2, 1, 0), ALLOW),                      # socket: IPv4, stream
    ("boot", PLAIN, 41, 198, (2, 0o2000001, 6), ALLOW),              # … with SOCK_CLOEXEC, TCP
    ("boot", PLAIN, 41, 198, (2, 1, 262), EPERM),                    # MPTCP
    ("boot", PLAIN, 41, 198, (2, 2, 0), EPERM),                      # datagrams
    ("boot", PLAIN, 41, 198, (40, 1, 0), EPERM),                     # vsock
    ("boot", Needs(families=frozenset({40})), 41, 198, (40, 1, 0), ALLOW),
    ("serve", PLAIN, 41, 198, (2, 1, 0), EPERM),
    ("serve", PLAIN, 42, 203, (), EPERM),                            # connect
    ("serve", PLAIN, 49, 200, (), EPERM),                            # bind
    ("serve", PLAIN, 288, 242, (), ALLOW),                           # accept4
    ("serve", PLAIN, 44, 206, (1, 0, 9, 0, 0, 0), ALLOW),            # sendto, nowhere in particular
    ("serve", PLAIN, 44, 206, (1, 0, 9, 0, 0x1000, 16), EPERM),
    ("serve", PLAIN, 44, 206, (1, 0, 9, 0, TOP, 16), EPERM),         # an address whose low half is zero
    ("serve", PLAIN, 44, 206, (1, 0, 9, 0x20000000, 0, 0), EPERM),   # MSG_FASTOPEN
    ("serve", PLAIN, 46, 211, (1, 0, 0x20000000), EPERM),            # sendmsg with it
    ("serve", PLAIN, 53, 199, (1, 1, 0), ALLOW),                     # socketpair of streams
    ("serve", PLAIN, 53, 199, (1, 0o2004001, 0), ALLOW),             # … with SOCK_CLOEXEC and SOCK_NONBLOCK
    ("serve", PLAIN, 53, 199, (1, 2, 0), EPERM),                     # datagrams: sendmsg could send them anywhere
    ("boot", PLAIN, 53, 199, (1, 2, 0), EPERM),
    ("boot", PLAIN, 53, 199, (1, 5, 0), EPERM),                      # SOCK_SEQPACKET
    ("boot", PLAIN, 203, 122, (1, 8, 0x1000), EPERM),                # sched_setaffinity, of whichever process
    ("serve", PLAIN, 16, 29, (0, 0x5401), ALLOW),                    # ioctl TCGETS
    ("serve", PLAIN, 16, 29, (0, 0x5412), EPERM),                    # TIOCSTI
    ("serve", PLAIN, 72, 25, (0, 8), EPERM),                         # fcntl F_SETOWN
    ("serve", PLAIN, 157, 167, (4,), EPERM),                         # prctl PR_SET_DUMPABLE
    ("serve", PLAIN, 157, 167, (15,), ALLOW),                        # PR_SET_NAME
    ("serve", PLAIN, 158, None, (0x1023, 18), EPERM),                # arch_prctl ARCH_REQ_XCOMP_PERM of AMX's tiles
    ("serve", FOREIGN, 158, None, (0x1023, 18), ALLOW),              # which llama.cpp asks for with each pass
    ("serve", FOREIGN, 158, None, (0x1023, 17), EPERM),
    ("serve", FOREIGN, 158, None, (0x1002, 18), EPERM),              # ARCH_SET_FS
    ("serve", PLAIN, 302, 261, (0, 4, 0x1000, 0), EPERM),            # prlimit64 that sets
    ("serve", PLAIN, 302, 261, (0, 4, TOP, 0), EPERM),
    ("serve", PLAIN, 302, 261, (0, 4, 0, 0x1000), ALLOW),
    ("serve", PLAIN, 302, 261, (os.getpid(), 4, 0, 0x1000), ALLOW),
    ("serve", PLAIN, 302, 261, (1, 4, 0, 0x1000), EPERM),            # of another process
    ("boot", PLAIN, 302, 261, (0, 4, 0x1000, 0), ALLOW),
    ("boot", PLAIN, 302, 261, (1, 7, 0x1000, 0), EPERM),             # that sets a limit of process 1
    ("serve", PLAIN, 317, 277, (), EPERM),                           # seccomp
    ("load", PLAIN, 317, 277, (), ALLOW),
    ("serve", PLAIN, 234, 131, (os.getpid(), 5, 6), ALLOW),          # tgkill of this process
    ("serve", PLAIN, 234, 131, (1, 1, 6), EPERM),
    ("serve", PLAIN, 200, 130, (), EPERM),                           # tkill, which no list names
    ("serve", PLAIN, 2000, 2000, (), ENOSYS),
    ("serve", PLAIN, 0xFFFFFFFF, None, (), KILL),
    ("serve", PLAIN, 0x40000000, None, (), KILL),                    # read of the x32 ABI
]


@pytest.mark.parametrize(("stage", "needs", "x86", "arm", "arguments", "verdict"), CASES)
def test_verdict(
        stage: Stage, needs: Needs, x86: int, arm: int | None, arguments: tuple[int, ...], verdict: int) -> None:
    """A call gets the verdict of the table on both architectures."""
    assert verdict == _verdict(stage, needs, X86, x86, *arguments)
    if arm is not None:
        assert verdict == _verdict(stage, needs, ARM, arm, *arguments)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("machine", "others"), [(X86, (AUDIT_I386, AUDIT_ARM, 0)), (ARM, (AUDIT_X86, 0x40000028))])
def test_another_architecture_ends_the_process(
        stage: Stage, machine: syscalls.Machine, others: tuple[int, ...]) -> None:
    """A call through another gate of the CPU, whose numbers mean other things, is fatal, whatever it asks for."""
    program = assemble(rules(stage, PLAIN), machine)
    assert {KILL} == {run(program, number, other) for other in others for number in range(0, 470, 3)}


@pytest.mark.parametrize("needs", [PLAIN, CHILD, DEVICES, COMPILING, FOREIGN])
@pytest.mark.parametrize("machine", [X86, ARM], ids=lambda machine: machine.name)
def test_stages_only_take_away(needs: Needs, machine: syscalls.Machine) -> None:
    """No number that one stage refuses whatever its arguments is allowed by the next; what is killed stays killed."""
    programs = [assemble(rules(stage, needs), machine) for stage in ("boot", "load", "serve")]
    for number in range(500):
        boot, load, serve = (run(program, number, machine.audit) for program in programs)
        assert (load == ALLOW) <= (boot == ALLOW)
        assert (serve == ALLOW) <= (load == ALLOW)
        assert (boot == KILL) <= (serve == KILL)


@pytest.mark.parametrize("stage", STAGES)
def test_lists_agree(stage: Stage) -> None:
    """Every call that a list names is in the table, and none is both allowed and deadly."""
    lists = [calls.ALWAYS, calls.PREPARING, calls.WAITING, calls.FOLDERS, calls.KILLED, frozenset(calls.NO_SUCH_CALL)]
    assert set() == frozenset().union(*lists) - set(syscalls.NUMBERS)
    assert set() == (calls.ALWAYS | calls.PREPARING) & calls.KILLED
    for needs in (PLAIN, CHILD, DEVICES, COMPILING):
        names = [rule.name for rule in rules(stage, needs)]
        assert sorted(set(names)) == sorted(names)


def test_jumps_stay_inside() -> None:
    """No jump of any program leaves it, and every program ends in a return: what the kernel's own checker demands."""
    for machine in (X86, ARM):
        program = assemble(rules("boot", Needs(True, 77, True)), machine)
        code = [program[at:at + 8] for at in range(0, len(program), 8)]
        assert 0x06 == code[-1][0]
        for at, instruction in enumerate(code):
            if instruction[0] & 7 == 5:  # BPF_JMP
                assert at + 1 + max(instruction[2], instruction[3]) < len(code)


def test_a_program_that_cannot_be_right_is_refused() -> None:
    """Two rules for one call, and a rule too long for a jump, are mistakes of ours that no filter is made from."""
    with pytest.raises(ValueError, match="two rules for read"):
        assemble([CallRule("read"), CallRule("read")], X86)
    long = tuple((Condition(0, value),) for value in range(100))
    with pytest.raises(ValueError, match="too long"):
        assemble([CallRule("ioctl", long)], X86)


def test_conditions_look_at_all_64_bits_where_asked() -> None:
    """A mask of 64 bits compares both halves; one of 32 compares the half that the kernel looks at."""
    whole, half = Condition(1, 5, (1 << 64) - 1), Condition(1, 5)
    for condition, verdicts in ((whole, (ALLOW, EPERM, EPERM)), (half, (ALLOW, ALLOW, EPERM))):
        program = assemble([CallRule("ioctl", ((condition,),))], X86)
        assert verdicts == tuple(run(program, 16, AUDIT_X86, (0, value)) for value in (5, 5 | TOP, 6))
    assert bpf.KILL == 0x80000000
