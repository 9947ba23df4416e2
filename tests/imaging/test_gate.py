"""The gate's parser, as a program of this machine: what of a host's ACPI tables reaches the kernel, and what ends the
boot."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from appliance.codec.canonical import canonical
from appliance.guest import gate
from tests.support import acpi
from tests.support.acpi import IO_APIC, NMI, TIMER, Answer, Machine, ask, fadt, madt, mailbox, processor, table, tpm2
from tests.support.require import absent


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once."""
    if shutil.which("gcc") is None:
        absent("gcc: see .ci/run for the Debian packages")
    return acpi.compile_parser(tmp_path_factory.mktemp("gate"))


def _with(*tables: bytes) -> bytes:
    """A machine with these tables in place of those of their names."""
    names = [each[:4] for each in tables]
    return Machine((*(each for each in Machine().tables if each[:4] not in names), *tables)).memory()


def _accepted(parser: Path, memory: bytes, **allowed: bool) -> Answer:
    found = ask(parser, memory, **allowed)
    assert isinstance(found, Answer), found
    return found


def test_a_kernel_gets_what_is_named_and_nothing_else(parser: Path) -> None:
    """Neither bytecode nor error tables of the host; what is ours has our name on it."""
    found = _accepted(parser, Machine().memory())
    assert ("FACP", "APIC", "TPM2", "SSDT") == found.listed
    assert {"FACP", "APIC", "TPM2", "SSDT", "FACS", "DSDT"} == set(found.tables)
    assert {b"APPL  GATE    "} == {data[10:24] for name, data in found.tables.items() if name != "FACS"}
    assert b"evil" not in b"".join(found.tables.values())


def test_no_tpm_where_the_policy_allows_none(parser: Path) -> None:
    """Neither its table nor its device, and the host's table is not even read."""
    assert ("FACP", "APIC") == _accepted(parser, Machine().memory(), tpm=False).listed
    assert ("FACP", "APIC") == _accepted(parser, _with(tpm2(0x1666000)), tpm=False).listed


def test_no_tpm_where_there_is_none(parser: Path) -> None:
    """A machine without a TPM has no device of one."""
    tables = tuple(each for each in Machine().tables if each[:4] != b"TPM2")
    assert ("FACP", "APIC") == _accepted(parser, Machine(tables).memory()).listed


def test_the_fadt_has_ports_alone(parser: Path) -> None:
    """The host's three ports, and no register or table at an address of its choice."""
    found = _accepted(parser, Machine().memory()).tables["FACP"]
    assert (0x600, 0x604, 0x608) == tuple(struct.unpack_from("<I", found, at)[0] for at in (56, 64, 76))
    assert [(1, 0x600), (1, 0x604), (1, 0x608), (1, 0xCF9)] == [
        struct.unpack_from("<B3xQ", found, at) for at in (148, 172, 208, 116)]
    assert 0 == found.count(struct.pack("<I", 0x1666000)) == found.count(struct.pack("<I", 0x666000))
    assert bytes(8) == found[36:44]  # the addresses of 32 bits


LATER = struct.pack("<BBHIII", 9, 16, 7, 300, 1, 300)  # x2APIC: a processor whose number has more than eight bits


@pytest.mark.parametrize(("entries", "wanted"), [
    ((processor(0), processor(1), IO_APIC, TIMER), (processor(0), processor(1), IO_APIC, TIMER)),
    ((processor(0), processor(1, 0), processor(2, 2), NMI), (processor(0),)),
    ((processor(0, 3), LATER),
     (processor(0), struct.pack("<BBHIII", 9, 16, 0, 300, 1, 300))),
    ((processor(0), struct.pack("<BBHQ", 5, 12, 0, 0x1666000)), (processor(0),)),
    ((processor(0), mailbox(0x1666000)), (processor(0),)),
    (tuple(processor(number) for number in range(64)), tuple(processor(number) for number in range(64)))],
    ids=["kept", "hot-plug", "more than 255", "other address", "mailbox", "64"])
def test_the_madt_is_made_entry_by_entry(parser: Path, entries: tuple[bytes, ...], wanted: tuple[bytes, ...]) -> None:
    """Processors that are there, I/O APICs, legacy interrupts. No wake-up mailbox outside of a TD."""
    assert b"".join(wanted) == _accepted(parser, _with(madt(*entries))).tables["APIC"][44:]


def test_a_td_has_the_firmwares_mailbox_alone(parser: Path) -> None:
    """Firmware appends it: one that stands before is the host's."""
    found = _accepted(parser, _with(madt(processor(0), mailbox(0x7000000))), td=True)
    assert struct.pack("<BBHIQ", 16, 16, 0, 0, 0x7000000) == found.tables["APIC"][-16:]
    for entries in ((mailbox(0x1666000), processor(0)), (processor(0), mailbox(0x1666000), mailbox(0x7000000)),
                    (processor(0), mailbox(0)), (processor(0), mailbox(0x1666010))):
        assert "APIC: a wake-up mailbox is not the firmware's" == ask(parser, _with(madt(*entries)), td=True)


def _patched(memory: bytes, at: int, data: bytes) -> bytes:
    return memory[:at] + data + memory[at + len(data):]


GOOD = Machine().memory()
XSDT, FIRST = 4096, 8192
SEVERAL = table("APIC", struct.pack("<II", 0xFEE00000, 1) + processor(0) + b"\0\x09" + bytes(7), 3)
MALFORMED = {
    "empty": (b"", "RSDP: it is at no address of memory"),
    "signature": (_patched(GOOD, 0, b"X"), "RSDP: it is not one of ACPI 2.0"),
    "revision": (_patched(GOOD, 15, b"\0"), "RSDP: it is not one of ACPI 2.0"),
    "rsdp sum": (_patched(GOOD, 9, b"X"), "RSDP: its checksum is wrong"),
    "rsdp second sum": (_patched(GOOD, 33, b"X"), "RSDP: its checksum is wrong"),
    "xsdt sum": (_patched(GOOD, XSDT + 10, b"X"), "XSDT: its checksum is wrong"),
    "xsdt length": (_patched(GOOD, XSDT + 4, struct.pack("<I", 35)), "XSDT: its length is not one of 36 bytes"),
    "xsdt too long": (_patched(GOOD, XSDT + 4, struct.pack("<I", 65537)), "XSDT: its length is not one of 36 bytes"),
    "xsdt beyond memory": (_patched(GOOD, XSDT + 4, struct.pack("<I", 65536)), "XSDT: it leaves memory"),
    "half an address": (GOOD[:XSDT] + table("XSDT", bytes(12)).ljust(4096, b"\0") + GOOD[FIRST:],
                        "XSDT: its length is not that of whole addresses"),
    "null": (Machine(further=(0,)).memory(), "XSDT: it names an address that is not one of memory"),
    "end of addresses": (Machine(further=((1 << 64) - 8,)).memory(), "XSDT: it names an address that is not one"),
    "fadt twice": (Machine((*Machine().tables, fadt())).memory(), "FACP: it is there twice"),
    "madt twice": (Machine((*Machine().tables, madt(processor(0)))).memory(), "APIC: it is there twice"),
    "tpm twice": (Machine((*Machine().tables, tpm2())).memory(), "TPM2: it is there twice"),
    "no fadt": (Machine((madt(processor(0)),)).memory(), "FACP: it is absent"),
    "no madt": (Machine((fadt(),)).memory(), "APIC: it is absent"),
    "fadt sum": (_with(fadt()[:-1] + b"X"), "FACP: its checksum is wrong"),
    "short fadt": (_with(table("FACP", bytes(79))), "FACP: it is absent, or shorter"),
    "no ports": (_with(fadt(events=0)), "FACP: it names no I/O ports"),
    "events in memory": (_with(fadt(events=0x1666000)), "FACP: it names no I/O ports"),
    "control in memory": (_with(fadt(control=0xFFFF)), "FACP: it names no I/O ports"),
    "timer in memory": (_with(fadt(timer=0x1666000)), "FACP: it names no I/O ports"),
    "short madt": (_with(table("APIC", bytes(7))), "APIC: it is absent, or shorter"),
    "other local address": (_with(madt(processor(0), local=0x1666000)), "APIC: processors' interrupt controllers are"),
    "no processor": (_with(madt(IO_APIC, processor(0, 0))), "APIC: it names no processor"),
    "entry of no bytes": (_with(madt(processor(0), b"\4\0")), "APIC: an entry leaves the table"),
    "entry cut": (_with(madt(processor(0), b"\4")), "APIC: an entry leaves the table"),
    "entry beyond": (_with(madt(processor(0), b"\0\x08\0\0\1")), "APIC: an entry leaves the table"),
    "long entry": (_with(SEVERAL), "APIC: an entry has a length that its type has not"),
    "i/o apic in memory": (_with(madt(processor(0), struct.pack("<BBBBII", 1, 12, 0, 0, 0x1666000, 0))),
                           "APIC: an I/O APIC is not at 0xfec00000"),
    "i/o apic beside": (_with(madt(processor(0), struct.pack("<BBBBII", 1, 12, 0, 0, 0xFEC00010, 0))),
                        "APIC: an I/O APIC is not at 0xfec00000"),
    "i/o apic's interrupts": (_with(madt(processor(0), struct.pack("<BBBBII", 1, 12, 0, 0, 0xFEC00000, 0xFFFFFFF0))),
                              "APIC: an I/O APIC has interrupts beyond 255"),
    "interrupt": (_with(madt(processor(0), struct.pack("<BBBBIH", 2, 10, 0, 16, 2, 0))),
                  "APIC: an interrupt is not one of an old PC"),
    "tpm in memory": (_with(tpm2(0x1666000)), "TPM2: the TPM is not at 0xfed40000"),
    "tpm by firmware": (_with(tpm2(0xFED40040, 2)), "TPM2: the TPM is not at 0xfed40000"),
    "short tpm": (_with(table("TPM2", bytes(15))), "TPM2: it is too short")}


@pytest.mark.parametrize("name", MALFORMED)
def test_whatever_is_malformed_ends_the_boot(parser: Path, name: str) -> None:
    """With the table's name and what is wrong with it."""
    memory, said = MALFORMED[name]
    found = ask(parser, memory)
    assert isinstance(found, str), found
    assert found.startswith(said), found


@pytest.mark.parametrize("changes", [8, 65536, (1 << 32) - 8])
def test_a_table_that_changes_while_it_is_read_ends_the_boot(parser: Path, changes: int) -> None:
    """A host may answer two reads of one address with two lengths: what was checked is what is used."""
    assert "XSDT: it is not the table that it should be" == ask(parser, GOOD, changes=changes)


FORMS = {
    "plain": Machine(), "fifo": Machine((fadt(), madt(processor(0)), tpm2(0, 6))),
    "bare": Machine((fadt(), madt(processor(0)))), "twice": Machine((fadt(), madt(processor(0)), fadt())),
    "td": Machine((fadt(), madt(processor(0), IO_APIC, mailbox(0x7000000)))),
    "many": Machine((fadt(timer=0), madt(*(processor(number) for number in range(64)), LATER, IO_APIC, TIMER), tpm2())),
    "short": Machine((table("TPM2", bytes(15)), fadt(), madt(LATER)))}


def test_mutated_tables_end_the_boot_or_give_what_is_promised(parser: Path, tmp_path: Path) -> None:
    """For two seconds: sanitizers find nothing, and whatever is accepted is as docs/concepts/gate.md says."""
    for name, machine in FORMS.items():
        (tmp_path / name).write_bytes(machine.memory(step=4))
    done = subprocess.run([parser, "fuzz", "2", "1", *(tmp_path / name for name in FORMS)], capture_output=True,
                          text=True, timeout=600)
    found = re.fullmatch(r"(\d+) inputs, (\d+) accepted, (\d+) kept\n", done.stdout)
    assert (0, "") == (done.returncode, done.stderr)
    assert found is not None
    assert int(found[1]) > 1000
    assert int(found[1]) // 50 < int(found[2]) < int(found[1]) * 9 // 10
    assert int(found[3]) > len(FORMS)  # some reached new code


@pytest.mark.parametrize(("source", "array"), [("dsdt.asl", "DSDT"), ("tpm.asl", "TPM_SSDT")])
def test_our_bytecode_is_what_a_compiler_makes_of_its_source(tmp_path: Path, source: str, array: str) -> None:
    """iasl, behind the header of 36 bytes."""
    if shutil.which("iasl") is None:
        absent("iasl: see .ci/run for the Debian packages")
    subprocess.run(["iasl", "-p", tmp_path / "made", acpi.GATE / source], check=True, capture_output=True)
    [text] = re.findall(rf"{array}\[\] = {{\n(.*?)}};", (acpi.GATE / "aml.h").read_text(), re.S)
    assert (tmp_path / "made.aml").read_bytes()[36:] == bytes(
        int(word, 16) for word in re.findall(r"0x(..),", re.sub(r"/\*.*?\*/", "", text)))


def test_process_1_says_whose_tables_the_kernel_has(tmp_path: Path) -> None:
    """The gate's, or the host's where no firmware started the image; else the boot ends."""
    tables, firmware, device, built = (tmp_path / name for name in ("tables", "efi", "tdx_guest", "gate.json"))
    tables.mkdir()
    built.write_bytes(canonical({"sha256": "ab" * 32}))
    ours = table("DSDT", b"")[:10] + b"APPL  GATE    " + bytes(12)
    (tables / "DSDT").write_bytes(ours)
    (tables / "FACS").write_bytes(b"FACS")
    places = {"tables": tables, "firmware": firmware, "confidential": (device,), "built": built}
    firmware.mkdir()
    assert f"ACPI tables DSDT, FACS, by gate sha256:{'ab' * 32}" == gate.look(**places)
    (tables / "SSDT1").write_bytes(table("SSDT", b"\x10\x05evil"))
    with pytest.raises(OSError, match="the host's ACPI tables are in force: SSDT1; needed: those of gate sha256:abab"):
        gate.look(**places)
    firmware.rmdir()
    assert "the host's ACPI tables are SSDT1" in gate.look(**places)
    device.touch()
    with pytest.raises(OSError, match="the host's ACPI tables are in force"):
        gate.look(**places)
    shutil.rmtree(tables)
    with pytest.raises(OSError, match="none is there"):
        gate.look(**places)
