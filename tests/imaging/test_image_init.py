"""Process 1: what it makes of the host's answers and names."""

from __future__ import annotations

import ipaddress
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.attestation.collector import COLLATERAL, Interfaces
from appliance.boot import report
from appliance.guest import dhcp, init
from appliance.guest import disks as init_disks
from appliance.guest import mounts as init_mounts
from appliance.guest import network as init_network
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


@pytest.mark.parametrize(("options", "wanted"), [
    (b"", (None, None)), (b"\x33\x04\xff\xff\xff\xff", (None, None)), (b"\x33\x03\x00\x0e\x10", (None, None)),
    (b"\x33\x04\x00\x00\x0e\x10", (3600, 1800)), (b"\x33\x04\x00\x00\x0e\x10\x3a\x04\x00\x00\x00\x3c", (3600, 60)),
    (b"\x33\x04\x00\x00\x0e\x10\x3a\x04\x00\x00\x0e\x10", (3600, 1800)), (b"\x33\x04\x00\x00\x00\x00", (20, 10))],
    ids=["unsaid", "for ever", "short", "half", "as the server says", "too late", "at once"])
def test_how_long_a_lease_holds(options: bytes, wanted: tuple[int | None, int | None]) -> None:
    """Options 51 and 58; half of the time where the server says nothing; a host cannot make process 1 ask all the
    time."""
    lease = dhcp.parse(answer(dhcp.ACK, options=options + b"\x01\x04\xff\xff\xff\x00"), NUMBER, HARDWARE)
    assert lease is not None
    assert wanted == (lease.seconds, lease.renewal)


def test_what_is_held_is_asked_for_as_the_standard_says() -> None:
    """RFC 2131, table 5: the address in the header, neither option 50 nor 54, and an answer to it alone."""
    held = dhcp.parse(answer(dhcp.ACK), NUMBER, HARDWARE)
    sent = dhcp.message(dhcp.ASK, NUMBER, HARDWARE, held=held)
    assert (bytes([10, 0, 2, 15]), b"\0\0") == (sent[12:16], sent[10:12])
    assert bytes([53, 1, 3, 55, 2, 1, 3, 255]) == sent[240:]


def test_leases_are_renewed_when_they_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never for a lease for ever; after its time an address is asked for anew, kept while nobody answers, and asked for
    again a minute later."""
    clock, asked = [1000.0], list[str]()
    monkeypatch.setattr(init_network.time, "monotonic", lambda: clock[0])
    for name in ("ask", "renew"):
        monkeypatch.setattr(init_network.dhcp, name, lambda *_, name=name: asked.append(name))
    network = init_network.Network(tmp_path)
    lease = dhcp.parse(answer(dhcp.ACK), NUMBER, HARDWARE)
    assert lease is not None
    network.hold("eth0", HARDWARE, lease)
    assert network.rest() is None
    network.hold("eth1", HARDWARE, replace(lease, seconds=100, renewal=50))
    assert 50 == network.rest()
    for later, wanted, rest in ((0, [], 50), (50, ["renew"], 60), (60, ["renew", "ask"], 60)):
        clock[0] += later
        network.keep(asked.append)
        assert (wanted, rest) == (asked, network.rest())


def test_fuzz() -> None:
    """Mutated answers are ignored, or leases that the kernel takes."""
    count, finding = driver.run(dhcp_fuzz.fuzz, dhcp_fuzz.seeds(), seconds=2, seed=1, least=501)
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


def test_disks_are_linked_where_the_boot_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State and the host's documents, each where it is there; the latter is the boot's default place."""
    monkeypatch.setattr(init_disks, "_DEVICES", tmp_path)
    found = {init_disks.STATE_ROLE: tmp_path / "vdb", init_disks.COLLATERAL_ROLE: tmp_path / "vdc"}
    for there in (set(), {init_disks.COLLATERAL_ROLE}, set(found)):
        monkeypatch.setattr(init_disks, "find", lambda role, there=there: found[role] if role in there else None)
        init_disks.mount_models(tmp_path)
        assert there == {path.name for path in tmp_path.iterdir()}
        for path in tmp_path.iterdir():
            assert found[path.name] == path.readlink()
            path.unlink()
    assert COLLATERAL.name == init_disks.COLLATERAL_ROLE
    assert Interfaces().collateral == COLLATERAL


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
    code = "import sys, appliance.guest.init; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("pydantic", "numpy", "litestar", "uvicorn", "cryptography", "asyncio", "ssl", "appliance.policy.loading",
             "appliance.models", "appliance.engine", "appliance.service", "appliance.attestation")
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_process_1_begins_the_report_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes is what the service reads; elsewhere there is none."""
    monkeypatch.setattr(init, "_steps", [])
    init.step("mounts", lambda: "all of them")
    path = tmp_path / "report"
    path.write_text(json.dumps(init._steps))
    [step] = report.begun_report(path).steps
    assert ("mounts", "passed", "all of them") == (step.name, step.verdict, step.detail)
    assert [] == report.begun_report(tmp_path / "none").steps
