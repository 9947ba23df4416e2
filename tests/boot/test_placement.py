"""Where the policy comes from, and what binds it: fake hierarchies of both vendors, and a software TPM."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.attestation.collect.tsm import TsmProvider
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.chip.device import read_pcrs
from appliance.boot.placement import bind as placement
from appliance.boot.placement import launchdisk
from appliance.errors import BootError
from appliance.imaging.qemu import run as boot
from appliance.policy import Loaded, load
from tests.fuzz import driver, launchdisk_fuzz
from tests.fuzz.launchdisk_fuzz import archive
from tests.support import swtpm
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import NOW, FakeIntel
from tests.support.fake_tsm import FakeTsm
from tests.support.policies import BASE


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """A policy that is not at the place of a baked one."""
    path = tmp_path / "deployment.hcl"
    path.write_text(BASE)
    return load(path)


def _snp(**fields: Any) -> TsmProvider:
    amd = FakeAmd("Genoa")
    return TsmProvider(cast(Any, FakeTsm(lambda data: amd.report(**{"report_data": data, **fields}))))


def _tdx(intel: FakeIntel, **fields: Any) -> TsmProvider:
    tsm = FakeTsm(lambda data: intel.quote(**{"report_data": data, **fields}), provider="tdx_guest")
    return TsmProvider(cast(Any, tsm))


@pytest.mark.parametrize("baked", [True, False])
def test_the_policy_that_the_hardware_was_told_of_is_in_force(loaded: Loaded, baked: bool) -> None:
    """HOST_DATA and MRCONFIGID that stand for the policy bind it, wherever it came from."""
    assert "bound by HOST_DATA" == placement.require(loaded, _snp(host_data=loaded.host_data), baked=baked)
    intel = FakeIntel()
    told = _tdx(intel, mr_config_id=loaded.digest)
    assert "bound by MRCONFIGID" == placement.require(loaded, told, baked=baked, at=NOW,
                                                       root=intel.pins["root"])


@pytest.mark.parametrize("value", [b"\x01" * 32, b"\0" * 32, b"\xff" * 32])
def test_another_policy_stops_the_boot(loaded: Loaded, value: bytes) -> None:
    """A given policy that the hardware was not told of is refused, also where it was told of nothing."""
    with pytest.raises(BootError, match="HOST_DATA is") as caught:
        placement.require(loaded, _snp(host_data=value), baked=False)
    assert "policy-binding" == caught.value.code
    intel = FakeIntel()
    with pytest.raises(BootError, match="MRCONFIGID is"):
        placement.require(loaded, _tdx(intel, mr_config_id=value + bytes(16)), baked=False, at=NOW,
                          root=intel.pins["root"])


def test_a_baked_policy_needs_no_other_binding_but_contradicts_none(loaded: Loaded) -> None:
    """The launch measurement covers it, so zeros are fine; a value for another policy is not."""
    assert "baked" == placement.require(loaded, _snp(host_data=bytes(32)), baked=True)
    with pytest.raises(BootError, match="HOST_DATA is"):
        placement.require(loaded, _snp(host_data=b"\x01" * 32), baked=True)


def test_a_quote_that_the_host_made_binds_nothing(loaded: Loaded) -> None:
    """TDX' quotes pass through the host: one under another root, or altered on the way, is refused."""
    intel = FakeIntel()
    with pytest.raises(BootError, match="policy binding"):
        placement.require(loaded, _tdx(intel, mr_config_id=loaded.digest), baked=False, at=NOW)
    tsm = FakeTsm(lambda data: intel.quote(report_data=data).replace(bytes(48), loaded.digest, 1), provider="tdx_guest")
    with pytest.raises(BootError, match="policy binding"):
        placement.require(loaded, TsmProvider(cast(Any, tsm)), baked=False, at=NOW,
                          root=intel.pins["root"])


def test_nothing_binds_a_simulated_launch(loaded: Loaded) -> None:
    """The simulated platform was told nothing, and the boot says no more than where the policy came from."""
    assert "given" == placement.bind(loaded, SimulatedProvider(loaded.host_data))
    assert "baked" == placement.bind(loaded, SimulatedProvider(loaded.host_data), baked_at=loaded.path)


def test_a_tpm_is_told_of_the_policy_once(loaded: Loaded, tmp_path: Path) -> None:
    """PCR 15 holds SHA-256(zeros || SHA-256(domain || digest)), also after a second boot of the service."""
    form = hashlib.sha256(b"appliance/policy-host-data/v1\n" + loaded.digest).digest()
    with swtpm.running() as path:
        for _ in range(2):
            tpm = Tpm(path)
            assert "measured in PCR 15" == placement.measure(loaded, tpm)
            assert hashlib.sha256(bytes(32) + form).digest() == read_pcrs(tpm)[15]
            assert {bytes(32)} == {read_pcrs(tpm)[number] for number in (12, 13, 14, 16)}
            tpm.close()
        other = tmp_path / "other.hcl"
        other.write_text(BASE.replace("platforms", "plaintext_budget = \"4MiB\"\n  platforms"))
        assert load(other).digest != loaded.digest
        tpm = Tpm(path)
        with pytest.raises(BootError, match="PCR 15 is"):
            placement.measure(load(other), tpm)
        tpm.close()


def test_a_baked_policy_wins(tmp_path: Path) -> None:
    """An image with a policy never looks at what the host gives."""
    baked, disk = tmp_path / "baked.hcl", tmp_path / "disk"
    baked.write_text("baked")
    disk.write_bytes(b"anything")
    assert baked == placement.find_policy(baked=baked, launch=disk, given=tmp_path / "given")
    assert not (tmp_path / "given").exists()


def test_a_given_policy_is_copied_once(tmp_path: Path) -> None:
    """The launch disk is read once: what the host writes afterwards changes nothing. The copy is private."""
    disk, given = tmp_path / "disk", tmp_path / "run" / "given"
    disk.write_bytes(archive({"deployment.hcl": b"given", "tenants.json": b"{}"}) + bytes(4096) + b"behind the end")
    path = placement.find_policy(baked=tmp_path / "none", launch=disk, given=given)
    disk.write_bytes(b"")
    assert ("given", "{}") == (path.read_text(), (given / "tenants.json").read_text())
    assert {0o600} == {each.stat().st_mode & 0o777 for each in given.iterdir()}
    assert 0o700 == given.stat().st_mode & 0o777


@pytest.mark.parametrize("launch", [None, "missing"])
def test_no_policy_is_no_boot(launch: str | None, tmp_path: Path) -> None:
    """Neither baked nor given: one diagnostic that says where each was looked for."""
    disk = None if launch is None else tmp_path / launch
    with pytest.raises(BootError):
        placement.find_policy(baked=tmp_path / "none", launch=disk, given=tmp_path / "given")


def test_the_command_in_the_specification_makes_a_launch_disk(tmp_path: Path) -> None:
    """GNU tar, as docs/formats/launch-disk.md calls it, writes what the appliance reads."""
    (tmp_path / "deployment.hcl").write_text(BASE)
    (tmp_path / "tenants.json").write_text("{}")
    subprocess.run(["tar", "--format=ustar", "-cf", "disk", "deployment.hcl", "tenants.json"], cwd=tmp_path, check=True)
    assert {"deployment.hcl": BASE.encode(), "tenants.json": b"{}"} == launchdisk.read(tmp_path / "disk")


def _header(**changes: bytes) -> bytes:
    """A disk of one file whose header has other bytes at some places, with a checksum that is right again."""
    data = bytearray(archive({"deployment.hcl": b"x"}))
    for place, value in changes.items():
        at = int(place[1:])
        data[at:at + len(value)] = value
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


GOOD = archive({"deployment.hcl": b"x" * 600})
REFUSED = {
    "empty": b"", "zeros": bytes(2048), "text": b"appliance {\n}\n" * 200, "cut in the header": GOOD[:300],
    "cut in the file": GOOD[:1024], "no end": GOOD[:1536], "no policy": archive({"other.hcl": b""}),
    "twice": archive({"deployment.hcl": b"x"})[:1024] + GOOD, "checksum": GOOD[:5] + b"X" + GOOD[6:],
    "folder": _header(_0=b"a/deployment.hcl"), "parent": _header(_0=b"..\0"), "hidden": _header(_0=b".x\0"),
    "symbolic link": _header(_156=b"2"), "device": _header(_156=b"3"), "prefix": _header(_345=b"etc"),
    "size": _header(_124=b"99999999999\0"), "large size": _header(_124=b"77777777777\0"),
    "binary size": _header(_124=b"\x80" + bytes(11)), "magic": _header(_257=b"mine!\x0000"),
    "padding": GOOD[:512 + 700] + b"X" + GOOD[512 + 701:], "pax": archive({"x" * 200: b""}, tarfile.PAX_FORMAT),
    "many": archive({"deployment.hcl": b""} | {f"f{number}": b"" for number in range(64)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_disk_that_is_not_exactly_one_is_refused(name: str) -> None:
    """Each deviation is a BootError, and nothing of the disk is used."""
    with pytest.raises(BootError, match="launch disk") as caught:
        launchdisk.parse(REFUSED[name])
    assert "launch-disk" == caught.value.code


def test_fuzz() -> None:
    """A few seconds of mutations: no crash, and never another reading than that of Python's own library."""
    count, finding = driver.run(launchdisk_fuzz.fuzz, launchdisk_fuzz.seeds(), seconds=2, seed=1, least=101)
    assert finding is None
    assert count > 100


def test_approvals_of_a_policy_are_on_its_launch_disk(tmp_path: Path) -> None:
    """`image boot --policy` gives them to the guest, under the name that it looks for; nothing is there that no policy
    asks for."""
    (tmp_path / "fleet.hcl").write_text(BASE)
    (tmp_path / "fleet.hcl.approvals").write_bytes(b"{}")
    for block, names in (("", ["deployment.hcl"]), (
            f'approvals {{\n  required = 1\n  approver "a" {{ public_key = "ed25519:{"8a" * 32}" }}\n}}\n',
            ["deployment.hcl", "deployment.hcl.approvals"])):
        (tmp_path / "fleet.hcl").write_text(BASE + block)
        disk = boot._launch(load(tmp_path / "fleet.hcl"), tmp_path)
        assert disk is not None
        assert names == list(launchdisk.read(disk))
