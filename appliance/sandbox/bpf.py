"""Classic BPF programs for seccomp(2), assembled from a list of rules. Small enough to check by
hand.

A program sees `struct seccomp_data` (linux/seccomp.h): number, architecture, instruction pointer,
six arguments of 64 bits. Every rule is one self-contained block that ends in a return, and jumps
only forward inside of it:

    if architecture is another:   kill        if number belongs to the x32 ABI: kill
    if number == RULE:            one alternative whose conditions all hold -> allow; none -> the rule's refusal
    …                             (one block for each rule)
    if number > NEWEST:           ENOSYS
    otherwise:                    EPERM
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from appliance.sandbox.syscalls import NEWEST, Machine, number

# linux/seccomp.h
KILL: Final = 0x80000000  # SECCOMP_RET_KILL_PROCESS
ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
EPERM: Final = _ERRNO | errno.EPERM
ENOSYS: Final = _ERRNO | errno.ENOSYS

# Offsets into struct seccomp_data
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# linux/bpf_common.h: class | size or source | mode or operation
_LOAD: Final = 0x20        # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54         # BPF_ALU | BPF_AND | BPF_K
_EQUAL: Final = 0x15       # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35    # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06      # BPF_RET | BPF_K

_MOST = 4096  # BPF_MAXINSNS

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


@dataclass(frozen=True)
class Condition:
    """`argument & mask == value`, over 64 bits. An argument that the kernel takes as int needs a
    mask of 32 bits."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF

    def code(self) -> list[tuple[int, int]]:
        """Pairs (offset of a 32-bit word, its mask), with the value's bits beside them in `values`.
        """
        low = _ARGUMENTS + 8 * self.argument  # both architectures are little-endian
        return [(low + 4 * half, self.mask >> 32 * half & 0xFFFFFFFF) for half in (0, 1)]

    def values(self) -> list[int]:
        """The two halves of the value, low first."""
        return [self.value >> 32 * half & 0xFFFFFFFF for half in (0, 1)]


Alternative = tuple[Condition, ...]


@dataclass(frozen=True)
class CallRule:
    """The rule for one call: allowed if all conditions of one alternative hold, `refusal`
    otherwise."""

    name: str
    alternatives: tuple[Alternative, ...] = ((),)
    refusal: int = EPERM


def _alternative(conditions: Alternative) -> list[Instruction]:
    """Test each word; the first that differs jumps behind this alternative's return."""
    words = [(offset, mask, value) for condition in conditions
             for (offset, mask), value in zip(condition.code(), condition.values(), strict=True) if mask]
    code: list[Instruction] = []
    for offset, mask, value in words:
        code.append((_LOAD, 0, 0, offset))
        if mask != 0xFFFFFFFF:
            code.append((_AND, 0, 0, mask))
        code.append((_EQUAL, 0, -1, value))  # -1: to be filled in, see below
    code.append((_RETURN, 0, 0, ALLOW))
    return [(op, yes, len(code) - 1 - at if no == -1 else no, k) for at, (op, yes, no, k) in enumerate(code)]


def _block(wanted: int, rule: CallRule) -> list[Instruction]:
    """One rule: the number is in the accumulator before, and still there behind the block."""
    inner: list[Instruction] = []
    for conditions in rule.alternatives:
        inner += _alternative(conditions)
    if not rule.alternatives or all(rule.alternatives):  # some call can reach the end
        inner.append((_RETURN, 0, 0, rule.refusal))
    if len(inner) > 255:
        raise ValueError(f"the rule for {rule.name} is too long for a jump")
    return [(_EQUAL, 0, len(inner), wanted), *inner]


def assemble(rules: Iterable[CallRule], machine: Machine) -> bytes:
    """The program, 8 bytes an instruction. ValueError for a call that is named twice, or a program
    that is too long."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit), (_RETURN, 0, 0, KILL), (_LOAD, 0, 0, _NUMBER)]
    if machine.foreign_abi is not None:
        code += [(_AT_LEAST, 0, 1, machine.foreign_abi), (_RETURN, 0, 0, KILL)]
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise ValueError(f"two rules for {rule.name}")
        seen.add(rule.name)
        wanted = number(rule.name, machine)
        if wanted is not None:
            code += _block(wanted, rule)
    code += [(_AT_LEAST, 0, 1, NEWEST + 1), (_RETURN, 0, 0, ENOSYS), (_RETURN, 0, 0, EPERM)]
    if len(code) > _MOST:
        raise ValueError(f"{len(code)} instructions, at most {_MOST}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
