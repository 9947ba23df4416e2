"""ACPI tables of a host that attacks, and machines that get them: bytecode that writes into the kernel, and a table of
error sources that does so without any.

Each attack writes over letters of what the kernel is going to print, so the console shows whether it came through.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from appliance.imaging.disk import fat, gpt, uki
from appliance.imaging.predict import uki as predict_uki
from tests.support import acpi

SOURCE = acpi.ROOT / "tests/support/tables/attack.asl"
KERNEL = 0x1000000  # where a kernel begins in its file's addresses; in memory it lies where firmware left room
BANNER, UNUSED, RUN = b"Linux version 6", b"unused kernel image (initmem)", b"Run %s as init process\n"
DEBUG_PORT = 0x502
FIRMWARE_END = 1 << 32
# table: method, what it returns, place of its four letters in UNUSED
BYTECODE = {"SSDT": ("_INI", "Zero", 0), "PSDT": ("_STA", "0x0F", 7), "OSDT": ("_CRS", "ResourceTemplate () {}", 14),
            "DSDT": ("_INI", "Zero", 0)}
STRUCK = "SSDTed PSDTel OSDTe (initmem)"  # UNUSED, when three tables have written over it
HEST_WORD = b"HEST %s "  # over RUN


def unpacked(vmlinuz: bytes) -> bytes:
    """The kernel's ELF file out of a bzImage (Documentation/arch/x86/boot.rst: setup_sects, payload_offset)."""
    offset, length = struct.unpack_from("<II", vmlinuz, 0x248)
    start = (vmlinuz[0x1F1] + 1) * 512 + offset
    packed, size = vmlinuz[start:start + length - 4], struct.unpack_from("<I", vmlinuz, start + length - 4)[0]
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(size)
    assert size == library.ZSTD_decompress(out, ctypes.c_size_t(size), packed, ctypes.c_size_t(len(packed)))
    return out.raw


def offset(elf: bytes, text: bytes) -> int:
    """How far behind the kernel's first byte a text lies in memory. It must be there once."""
    table, = struct.unpack_from("<Q", elf, 32)
    count, = struct.unpack_from("<H", elf, 56)
    at = elf.index(text)
    for number in range(count):
        kind, _, start, _, place, size = struct.unpack_from("<IIQQQQ", elf, table + 56 * number)
        if kind == 1 and start <= at < start + size:
            return at - start + place - KERNEL
    raise AssertionError(f"{text!r} is in no segment")


def bytecode(name: str, elf: bytes, folder: Path) -> Path:
    """A table of this name that attacks that kernel, compiled by iasl."""
    method, value, place = BYTECODE[name]
    text = SOURCE.read_text()
    for key, given in {"TABLE": name, "PATH": rf"\_SB.{name}", "NUMBER": place, "METHOD": method, "RETURN": value,
                       "MARK": f"{int.from_bytes(name.encode(), 'little'):#x}",
                       "BANNER": f"{offset(elf, BANNER):#x}", "TEXT": f"{offset(elf, UNUSED) + place:#x}"}.items():
        text = text.replace(f"@{key}@", str(given))
    source = folder / f"{name}.asl"
    source.write_text(text)
    subprocess.run(["iasl", "-p", source.with_suffix(""), source], check=True, capture_output=True)
    return source.with_suffix(".aml")


def error_source(elf: bytes, block: int, kernel: int) -> bytes:
    """HEST with one source, GHES version 2 (ACPI 6.5, 18.3.2.8), whose error of the kind "corrected" is acknowledged by
    eight bytes over RUN. `block` is the address of what `error_block` gives."""
    def register(address: int) -> bytes:
        return struct.pack("<BBBBQ", 0, 64, 0, 4, address)

    polled = struct.pack("<BBHIIIIII", 0, 28, 0, 10, 0, 0, 0, 0, 0)  # every 10 ms: before the first process starts
    source = struct.pack("<HHHBBIII", 10, 0, 0xFFFF, 0, 1, 1, 1, 4096) + register(block) + polled + struct.pack(
        "<I", 4096) + register(kernel + offset(elf, RUN)) + struct.pack("<Q", 0) + HEST_WORD
    return acpi.table("HEST", struct.pack("<I", 1) + source)


def error_block(address: int) -> bytes:
    """The address of an error status block, and behind it the block: one corrected error, without
    details."""
    return struct.pack("<QIIIII", address + 8, 2, 0, 0, 0, 2)


@dataclass(frozen=True)
class Host:
    """A host's gift to its guest: firmware with an error block in its unused part, and tables."""

    firmware: Path
    tables: tuple[Path, ...]
    told: Path  # what bytecode wrote to the debug port

    @classmethod
    def make(cls, folder: Path, elf: bytes, firmware: Path, names: tuple[str, ...], kernel: int = KERNEL) -> Host:
        """Tables of these names, each an attack on this kernel. A HEST attacks a kernel that lies
        at `kernel`."""
        data = bytearray(firmware.read_bytes())
        place = data.index(b"\xff" * 0x20000) + 0x10000 & ~15  # firmware looks at the first bytes of what is unused
        address = FIRMWARE_END - len(data) + place
        block = error_block(address)
        data[place:place + len(block)] = block
        folder.mkdir()
        (folder / "firmware.fd").write_bytes(data)
        (folder / "HEST").write_bytes(error_source(elf, address, kernel))
        tables = [folder / "HEST" if name == "HEST" else bytecode(name, elf, folder) for name in names]
        return cls(folder / "firmware.fd", tuple(tables), folder / "told")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the tables as options of QEMU."""
        given = [word for path in self.tables for word in ("-acpitable", f"file={path}")]
        return (*given, "-chardev", f"file,id=told,path={self.told}", "-device",
                f"isa-debugcon,iobase={DEBUG_PORT:#x},chardev=told")


def programs(image: Path, words: str) -> tuple[bytes, bytes]:
    """An image's EFI program with further words for the kernel: with its gate, and the same with its first instruction
    in the stub, as if there were none. The stub's own is what it jumps to."""
    parsed = predict_uki.parse((image / "appliance.efi").read_bytes())
    gate = next(each for each in parsed.pe.sections if each.name == predict_uki.GATE)
    stub = _without_sections(parsed.pe.data, gate.raw_at)
    cmdline = parsed.section(".cmdline") + words.encode()
    gated = uki.assemble(stub, (image / "gate.bin").read_bytes(), [
        (name, cmdline if name == ".cmdline" else parsed.section(name))
        for name in (".osrel", ".cmdline", ".uname", ".initrd", ".linux")])
    stock, entry = bytearray(gated), struct.unpack_from("<I", gated, 0x3C)[0] + 24 + 16
    struct.pack_into("<I", stock, entry, _stub_entry((image / "gate.bin").read_bytes(), gate.address))
    return gated, bytes(stock)


def _without_sections(program: bytes, end: int) -> bytes:
    """The boot stub that a program begins with: its headers have the sections that lie before `end` in the file."""
    stub = bytearray(program[:end])
    start, = struct.unpack_from("<I", stub, 0x3C)
    count, size = struct.unpack_from("<H12xH", stub, start + 6)
    table = start + 24 + size
    kept = [number for number in range(count)
            if struct.unpack_from("<I", stub, table + 40 * number + 20)[0] < end]
    stub[table + 40 * len(kept):table + 40 * count] = bytes(40 * (count - len(kept)))
    struct.pack_into("<H", stub, start + 6, len(kept))
    return bytes(stub)


def _stub_entry(gate: bytes, address: int) -> int:
    """Where the gate jumps to: `pop %rdx; pop %rcx; jmp` ends its first lines."""
    at = gate.index(b"\x5a\x59\xe9") + 3
    return address + at + 4 + struct.unpack_from("<i", gate, at)[0]


def disk(program: bytes) -> bytes:
    """A disk that starts a program."""
    return b"".join(gpt.pack(uuid.UUID(int=1), [
        gpt.Partition(gpt.ESP, uuid.UUID(int=2), "esp", fat.pack(program, 1, 1760000000))]))
