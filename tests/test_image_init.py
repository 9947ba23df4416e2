"""Process 1: what it makes of the host's answers and names."""

from __future__ import annotations

import ipaddress
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.boot import dhcp, init_disks, init_mounts
from tests.fuzz import dhcp_fuzz, driver
from tests.fuzz.dhcp_fuzz import HARDWARE, NUMBER, answer


def test_an_acknowledgement_is_a_lease() -> None:
    """Address, mask, router and server, from options of RFC 2132."""
    assert dhcp.parse(answer(dhcp.ACK), NUMBER, HARDWARE) == dhcp.Lease(
        ipaddress.IPv4Address("10.0.2.15"), ipaddress.IPv4Address("255.255.255.0"),
        ipaddress.IPv4Address("10.0.2.2"), ipaddress.IPv4Address("10.0.2.2"), dhcp.ACK)


@pytest.mark.parametrize("data", [
    b"", answer(dhcp.ACK)[:239], answer(dhcp.ACK, number=1), answer(dhcp.ACK, address="127.0.0.1"),
    answer(dhcp.ACK, address="224.0.0.1"), answer(dhcp.ACK, address="0.0.0.0"),  # noqa: S104
    answer(dhcp.ACK, options=b"\x01\x04\xff\x00\xff\x00"), answer(dhcp.ACK, options=b"\x01\x04\x00\x00\x00\x00"),
    answer(dhcp.ACK, options=b"\x01\x03\xff\xff\xff"), answer(dhcp.ACK, options=b"\x01\xff\xff"),
    answer(dhcp.ACK) + bytes(1500), b"\x01" + answer(dhcp.ACK)[1:],
    answer(dhcp.ACK).replace(HARDWARE, b"\x00" * 6)],
    ids=["empty", "cut", "transaction", "loopback", "multicast", "none", "holes", "zero", "short", "cut option", "long",
         "request", "hardware"])
def test_other_answers_are_ignored(data: bytes) -> None:
    """Malformed, for others, or with an address or mask that no interface can have."""
    assert dhcp.parse(data, NUMBER, HARDWARE) is None


def test_questions_are_as_the_standard_draws_them() -> None:
    """Sizes and offsets of RFC 2131: 236 bytes, the cookie, then the type first; broadcast is asked for."""
    sent = dhcp.message(dhcp.DISCOVER, NUMBER, HARDWARE)
    assert struct.unpack_from("!BBBBIHH", sent) == (1, 1, 6, 0, NUMBER, 0, 0x8000)
    assert sent[28:34] == HARDWARE
    assert sent[236:240] == b"\x63\x82\x53\x63"
    assert sent[240:243] == bytes([53, 1, dhcp.DISCOVER])
    offer = dhcp.parse(answer(dhcp.OFFER), NUMBER, HARDWARE)
    wanted = dhcp.message(dhcp.ASK, NUMBER, HARDWARE, offer)
    assert bytes([50, 4, 10, 0, 2, 15]) in wanted
    assert bytes([54, 4, 10, 0, 2, 2]) in wanted


def test_fuzz() -> None:
    """Mutated answers are ignored, or leases that the kernel takes."""
    count, finding = driver.run(dhcp_fuzz.fuzz, dhcp_fuzz.seeds(), seconds=2, seed=1)
    assert (finding, count > 500) == (None, True)


def _device(folder: Path, name: str, *, serial: str = "", partition: str = "") -> None:
    (folder / name).mkdir()
    if serial:
        (folder / name / "serial").write_text(serial + "\n")
    (folder / name / "uevent").write_text(f"MAJOR=254\nPARTNAME={partition}\n" if partition else "MAJOR=254\n")


def test_disks_are_found_by_serial_number_or_partition_name(tmp_path: Path) -> None:
    """The first of a role; others are not touched."""
    _device(tmp_path, "vdc", serial="appliance-models")
    _device(tmp_path, "vdb", serial="appliance-models-2")
    _device(tmp_path, "vdd1", partition="appliance-state")
    assert init_disks.find(init_disks.MODELS_ROLE, tmp_path) == Path("/dev/vdc")
    assert init_disks.find(init_disks.STATE_ROLE, tmp_path) == Path("/dev/vdd1")
    assert init_disks.find(init_disks.LAUNCH_ROLE, tmp_path) is None


def test_audit_port_is_found_by_its_name(tmp_path: Path) -> None:
    """Among other virtio ports; none where the bus is absent."""
    for name, said in (("vport0p1", "other"), ("vport0p2", "appliance-audit")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(said + "\n")
    assert init_disks.audit_port(tmp_path) == Path("/dev/vport0p2")
    assert init_disks.audit_port(tmp_path / "none") is None


def test_a_setting_that_the_kernel_does_not_keep_ends_the_boot(tmp_path: Path) -> None:
    """Written, read back, and compared."""
    (tmp_path / "root/kernel").mkdir(parents=True)
    (tmp_path / "root/kernel/x").symlink_to("/dev/null")
    settings = tmp_path / "sysctl.conf"
    settings.write_text("kernel.x = 1\n")
    with pytest.raises(OSError, match=r"kernel\.x is '', wanted '1'"):
        init_mounts.apply_sysctl(settings, tmp_path / "root")


def test_process_1_stays_small() -> None:
    """It imports nothing that parses policies, models or requests, and no framework."""
    code = "import sys, appliance.boot.init; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("pydantic", "numpy", "litestar", "uvicorn", "cryptography", "asyncio", "ssl", "appliance.policy.loading",
             "appliance.models", "appliance.engine", "appliance.service", "appliance.attestation")
    assert [name for name in loaded if name.startswith(heavy)] == []
