"""A unified kernel image as its stub measures it: sections into PCR 11, command line and initrd
into PCR 9.

Sources: the UAPI group's "Unified Kernel Image" and "Linux TPM PCR Registry"; systemd-stub(7). The
stub measures the name of each section (with a zero byte) and then its content, in the order of
`events.MEASURED`. The kernel's own EFI code then measures its load options (UTF-16, with the zero)
and the initrd that it is given. Stubs from version 255 on put the .osrel section into that initrd,
as a file in an archive of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.errors import ImageError
from appliance.imaging.predict import pe as predict_pe
from appliance.imaging.predict.pe import Pe

GATE = ".gate"  # where the program begins (image/gate/gate.c); measured with the program, and not by the stub
REQUIRED = (".linux", ".osrel", ".cmdline", ".initrd", ".uname", ".sbat", GATE)
KNOWN_STUBS = (257,)
# The sections of a stub itself; it measures none of them but .sbat.
STUB_SECTIONS = frozenset((".text", ".rodata", ".data", ".sdmagic", ".reloc", ".dynamic", ".rela", ".dynsym", ".sbat"))
_VERSION = re.compile(rb"#### LoaderInfo: systemd-stub (\d{3})[^#]{0,64} ####")


@dataclass(frozen=True)
class Uki:
    """A parsed image. `kernel` is the PE file in its .linux section; `stub` the version of
    systemd-stub."""

    pe: Pe
    kernel: Pe
    stub: int

    def section(self, name: str) -> bytes:
        """Return the content of a section that every image has."""
        content = self.pe.content(name)
        if content is None:
            raise ImageError(f"unified kernel image: no section {name}")
        return content

    def initrd(self) -> bytes:
        """Return the initrd as the stub hands it to the kernel: padded, then its own archive with
        os-release."""
        return padded(self.section(".initrd")) + padded(_archive("os-release", self.section(".osrel")))


def padded(data: bytes) -> bytes:
    """Zeros up to a multiple of four bytes."""
    return data + bytes(-len(data) % 4)


def _member(number: int, mode: int, name: str, content: bytes) -> bytes:
    """One entry of a cpio archive in "newc" format (Linux, early-userspace/buffer-format)."""
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode("ascii") + b"\x00"
    return padded(head) + padded(content)


def _archive(name: str, content: bytes) -> bytes:
    """Return the stub's archive: a read-only folder `.extra` and one file in it."""
    trailer = b"070701" + b"00000000" * 4 + b"00000001" + b"00000000" * 6 + b"0000000B" + b"00000000" + b"TRAILER!!!"
    return (_member(1, 0o40555, ".extra", b"") + _member(2, 0o100444, f".extra/{name}", content)
            + padded(trailer + b"\x00"))


def parse(data: bytes) -> Uki:
    """Return the image in `data`. Raises ImageError for anything whose measurement is not known
    here."""
    pe = predict_pe.parse(data, "unified kernel image")
    found = _VERSION.search(pe.content(".sdmagic") or b"")
    stub = int(found[1]) if found else 0
    if stub not in KNOWN_STUBS:
        known = ", ".join(map(str, KNOWN_STUBS))
        raise ImageError(f"unified kernel image: its stub is {f'systemd-stub {stub}' if stub else 'not known'}",
                         hint=f"the measurements of systemd-stub {known} are known; add another after comparing it")
    names = {section.name for section in pe.sections}
    unknown, absent = names - STUB_SECTIONS - set(REQUIRED), [name for name in REQUIRED if name not in names]
    if unknown or absent:
        what = f"sections {', '.join(sorted(unknown))} are not predicted" if unknown else f"no section {absent[0]}"
        raise ImageError(f"unified kernel image: {what}", hint=f"an image has {', '.join(REQUIRED)}")
    if pe.entry != next(section.address for section in pe.sections if section.name == GATE):
        raise ImageError("unified kernel image: it does not begin in its gate",
                         hint="the host's ACPI tables would reach the kernel: build the image again")
    uki = Uki(pe, predict_pe.parse(pe.content(".linux") or b"", "kernel in the unified kernel image"), stub)
    if re.fullmatch(rb"[ -~]+", uki.section(".cmdline")) is None:
        raise ImageError("unified kernel image: the command line is empty or not printable ASCII")
    return uki
