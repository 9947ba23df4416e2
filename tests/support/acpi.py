"""ACPI tables as a host might write them (ACPI 6.5, chapter 5), and the gate's parser as a program of this machine."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
GATE = ROOT / "image/gate"
BASE = 0x10000  # where the made-up memory begins, with the RSDP
PAGE = 4096


def checked(data: bytes, at: int, size: int | None = None) -> bytes:
    """The bytes with a checksum at `at`, over the first `size`."""
    clear = data[:at] + b"\0" + data[at + 1:]
    return clear[:at] + bytes([-sum(clear[:size]) & 255]) + clear[at + 1:]


def table(name: str, body: bytes, revision: int = 1) -> bytes:
    """A table with its header."""
    head = struct.pack("<4sIBB6s8sI4sI", name.encode(), 36 + len(body), revision, 0, b"BOCHS ", b"BXPC    ", 1, b"BXPC",
                       1)
    return checked(head + body, 9)


def processor(number: int, flags: int = 1) -> bytes:
    """A MADT entry: local APIC."""
    return struct.pack("<BBBBI", 0, 8, number, number, flags)


IO_APIC = struct.pack("<BBBBII", 1, 12, 0, 0, 0xFEC00000, 0)
TIMER = struct.pack("<BBBBIH", 2, 10, 0, 0, 2, 0)
NMI = struct.pack("<BBBHB", 4, 6, 255, 0, 1)


def mailbox(address: int) -> bytes:
    """A MADT entry: multiprocessor wake-up."""
    return struct.pack("<BBHIQ", 16, 16, 1, 0, address)


def madt(*entries: bytes, local: int = 0xFEE00000) -> bytes:
    """A MADT."""
    return table("APIC", struct.pack("<II", local, 1) + b"".join(entries), 3)


def fadt(*, events: int = 0x600, control: int = 0x604, timer: int = 0x608, dsdt: int = 0x666000) -> bytes:
    """A FADT of revision 3 as QEMU's, with memory for registers that could be at ports."""
    body = bytearray(244 - 36)
    struct.pack_into("<II", body, 0, 0x666000, dsdt)
    struct.pack_into("<HIBB", body, 46 - 36, 9, 0xB2, 2, 3)
    struct.pack_into("<IIIIIII", body, 56 - 36, events, 0, control, 0, 0, timer, 0x620)
    for at in (116, 148, 172, 208, 220):
        struct.pack_into("<BBBBQ", body, at - 36, 0, 32, 0, 3, 0x1666000)
    struct.pack_into("<QQ", body, 132 - 36, 0x666000, dsdt)
    return table("FACP", bytes(body), 3)


def tpm2(control: int = 0xFED40040, method: int = 7) -> bytes:
    """A TPM2 with an event log at an address of the host's choice."""
    return table("TPM2", struct.pack("<HHQI12sIQ", 0, 0, control, method, b"", 0x10000, 0x1666000), 4)


@dataclass(frozen=True)
class Machine:
    """A memory with an RSDP, an XSDT and these tables, in this order."""

    tables: tuple[bytes, ...] = (table("SSDT", b"\x10\x05evil"), fadt(), madt(processor(0), IO_APIC, TIMER, NMI),
                                 tpm2(), table("HEST", bytes(64)))
    further: tuple[int, ...] = field(default=())  # addresses of tables that are not there

    def memory(self, step: int = PAGE) -> bytes:
        """The bytes from BASE on; each table begins at a multiple of `step` bytes."""
        lengths = [36, 36 + 8 * (len(self.tables) + len(self.further)), *map(len, self.tables)]
        places = [BASE]
        for length in lengths:
            places.append(places[-1] + -(-length // step) * step)
        xsdt = table("XSDT", b"".join(struct.pack("<Q", at) for at in (*places[2:-1], *self.further)))
        rsdp = struct.pack("<8sB6sBIIQB3x", b"RSD PTR ", 0, b"BOCHS ", 2, 0, 36, places[1], 0)
        rsdp = checked(checked(rsdp, 8, 20), 32)
        return b"".join(piece + bytes(-len(piece) % step) for piece in (rsdp, xsdt, *self.tables))


def compile_parser(folder: Path, *words: str) -> Path:
    """The parser for this machine, with sanitizers."""
    program = folder / "gate_host"
    subprocess.run(["gcc", "-g", "-O1", "-std=gnu17", "-Wall", "-Wextra", "-Werror", f"-I{GATE}",
                    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fsanitize-coverage=trace-pc", *words,
                    "-o", program, ROOT / "tests/support/gate_host.c"], check=True)
    return program


@dataclass(frozen=True)
class Answer:
    """The tables that the gate hands to the kernel, by name, in the XSDT's order first."""

    tables: dict[str, bytes]
    listed: tuple[str, ...]


def ask(parser: Path, memory: bytes, *, tpm: bool = True, td: bool = False, changes: int = 0) -> Answer | str:
    """The gate's result on a memory, or its reason to end the boot. `changes`: bytes that each
    table has become longer by, once more than its header is read."""
    done = subprocess.run([parser, "check", str(int(tpm)), str(int(td)), str(changes)], input=memory,
                          capture_output=True, check=True)
    first, _, rest = done.stdout.partition(b"\n")
    if first != b"fine":
        return first.decode()
    address, _, answer = rest.partition(b"\n")

    def at(place: int) -> bytes:
        offset = place - int(address)
        return answer[offset:offset + struct.unpack_from("<I", answer, offset + 4)[0]]

    xsdt = at(struct.unpack_from("<Q", answer, 24)[0])
    listed = [at(place) for (place,) in struct.iter_unpack("<Q", xsdt[36:])]
    facs, dsdt = (at(struct.unpack_from("<Q", listed[0], offset)[0]) for offset in (132, 140))
    named = {each[:4].decode(): each for each in (*listed, facs, dsdt)}
    return Answer(named, tuple(each[:4].decode() for each in listed))
