"""ACPI tables of an attacking host, in emulated guests: on a stock kernel they read and write the kernel's memory,
which shows that the test can see; behind the gate the same tables do nothing, and malformed ones end the boot."""

from __future__ import annotations

import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu.machine import FIRMWARE
from tests.support import acpi, attacks, images
from tests.support.images import Guest
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(600)]

WORDS = " loglevel=8 nokaslr"  # what the kernel prints is what the attacks write over; data alone cannot search for it
MEMORY = 512
ENDED = re.compile(r"init process|gate: the kernel is not started|[Pp]ower down|Kernel panic")
TABLES = ("SSDT", "PSDT", "OSDT", "HEST")


@dataclass(frozen=True)
class Machines:
    """Two images that differ in their first instruction alone, and hosts for them."""

    folder: Path
    gated: bytes
    stock: bytes
    elf: bytes

    def console(self, name: str, program: bytes, *words: str, firmware: Path | None = None, direct: bool = False,
                cpus: int = 1) -> str:
        """What a guest writes until its kernel is about to start the first process, or it goes off."""
        image = self.folder / name
        image.mkdir()
        shutil.copy(self.folder / "image.json", image)
        (image / "appliance.efi").write_bytes(program)
        (image / "disk.raw").write_bytes(bytes(1 << 20) if direct else attacks.disk(program))
        start = ("-kernel", str(image / "appliance.efi")) if direct else ()
        guest = Guest(boot.Options(image=image, accelerator="tcg", confidential="none", port=None, memory=MEMORY,
                                   cpus=cpus, firmware=firmware, extra=(*words, *start)))
        return guest.run(lambda line: ENDED.search(line) is not None).console


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, image: Path) -> Machines:
    """Made of the session's image."""
    images.need("qemu-system-x86_64", "iasl")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    folder = tmp_path_factory.mktemp("gate")
    shutil.copy(image / "image.json", folder)
    gated, stock = attacks.programs(image, WORDS)
    return Machines(folder, gated, stock, attacks.unpacked((image / "vmlinuz").read_bytes()))


def test_the_two_programs_differ_in_their_first_instruction_alone(machines: Machines) -> None:
    """The address of it, four bytes of the header."""
    at = struct.unpack_from("<I", machines.gated, 0x3C)[0] + 24 + 16
    assert machines.gated[:at] + machines.stock[at:at + 4] + machines.gated[at + 4:] == machines.stock
    assert machines.gated[at:at + 4] != machines.stock[at:at + 4]


@pytest.fixture(scope="module")
def kernel(machines: Machines) -> int:
    """Where the kernel lies in such a machine, as bytecode tells it. A HEST has to know it before."""
    host = attacks.Host.make(machines.folder / "host-told", machines.elf, FIRMWARE[0], TABLES)
    machines.console("told", machines.stock, *host.words, firmware=host.firmware)
    return int.from_bytes(host.told.read_bytes()[4:8], "little")


def test_a_stock_kernel_is_read_and_written_by_the_hosts_tables(machines: Machines, kernel: int) -> None:
    """Bytecode in an SSDT, a PSDT and an OSDT finds the kernel, tells its banner and writes into it; a HEST writes
    eight bytes without bytecode.

    The kernel obeys a HEST again and again. Once its text is read-only, it dies at the address that the host chose.
    """
    host = attacks.Host.make(machines.folder / "host-stock", machines.elf, FIRMWARE[0], TABLES, kernel)
    console = machines.console("stock", machines.stock, *host.words, firmware=host.firmware)
    told = host.told.read_bytes()
    assert attacks.STRUCK in console, console
    chosen = kernel + attacks.offset(machines.elf, attacks.RUN)
    died = re.search(rf"page fault for address: [0-9a-f]{{8}}{chosen:08x}\b", console)
    assert died or "HEST /init s init process" in console, console
    for name in ("SSDT", "PSDT", "OSDT"):
        assert name.encode() + struct.pack("<I", kernel) + b"Linux version 6." in told, told


def test_behind_the_gate_the_same_tables_do_nothing(machines: Machines, kernel: int) -> None:
    """The kernel says what it has to say, and knows of no table but ours; eight processors come up, in a machine that
    was started with `-kernel` through firmware."""
    host = attacks.Host.make(machines.folder / "host-gated", machines.elf, FIRMWARE[0], TABLES, kernel)
    console = machines.console("gated", machines.gated, *host.words, firmware=host.firmware, direct=True, cpus=8)
    assert "Run /init as init process" in console, console
    assert attacks.UNUSED.decode() in console, console
    assert b"" == host.told.read_bytes()
    assert {"RSDP", "XSDT", "FACP", "DSDT", "FACS", "APIC"} == set(re.findall(r"ACPI: ([A-Z]{4}) 0x", console)), console
    assert "8 CPUs" in console, console


def test_malformed_tables_end_the_boot_and_the_console_says_why(machines: Machines) -> None:
    """A second MADT, with a wake-up mailbox of the host's."""
    (machines.folder / "APIC").write_bytes(acpi.madt(acpi.processor(0), acpi.mailbox(0x1666000)))
    console = machines.console("malformed", machines.gated, "-acpitable", f"file={machines.folder / 'APIC'}")
    assert "gate: ACPI table APIC: it is there twice" in console, console
    assert "Linux version" not in console
