"""`appliance doctor`: what is there and what lacks, on file systems and paths of a test's own; what it advises
helps."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.doctor import examination, hardware
from appliance.doctor.line import BOOT, BUILD, SERVE, VERIFY
from tests.support import images

ROOT = Path(__file__).parents[2]


def _root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _found(root: Path) -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.found) for each in examination.examine(root=root).lines}


def test_an_snp_host_and_a_tdx_guest_are_told(tmp_path: Path) -> None:
    """By what Linux has in such machines; neither is taken for the other."""
    host = _found(_root(tmp_path / "host", {"sys/module/kvm_amd/parameters/sev_snp": "Y\n"}))
    assert "yes" == host["TEE host"][0]
    assert host["TEE host"][1].startswith("sev-snp; its firmware does not answer")
    assert "note" == host["TEE guest"][0]
    guest = _root(tmp_path / "guest", {"dev/tdx_guest": "", "sys/module/kvm_amd/parameters/sev_snp": "N\n"})
    assert "no" == _found(guest)["TEE guest"][0], "no reports without configfs-tsm"
    (guest / "sys/kernel/config/tsm/report").mkdir(parents=True)
    assert ("yes", "tdx, reports by configfs-tsm") == _found(guest)["TEE guest"]
    assert "note" == _found(guest)["TEE host"][0]
    assert ("tdx",) == hardware.platforms_here(guest)


def test_the_status_of_snp_firmware() -> None:
    """32 bytes by the firmware ABI's table of SNP_PLATFORM_STATUS: API, state, build, mask, guests, TCBs."""
    data = bytes.fromhex("0137" "01" "01" "1b000000" "00000000" "02000000" "0a00000000001b51" "0a00000000001a51")
    found = hardware.snp_status(data)
    assert ("1.55", 27) == (found.api, found.build)
    assert (0x511B00000000000A, 0x511A00000000000A) == (found.current_tcb, found.reported_tcb)


@pytest.mark.parametrize(("text", "state"), [
    ('PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_CODENAME=trixie\n', "yes"),
    ('PRETTY_NAME="Fedora Linux 43"\nID=fedora\n', "note"), ("", "note")])
def test_the_system_by_its_release_file(text: str, state: str, tmp_path: Path) -> None:
    """Debian from bookworm on is what images were built on."""
    assert state == _found(_root(tmp_path, {"etc/os-release": text}))["system"][0]


def test_what_lacks_is_installed_by_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Without programs no image is built or booted. The packages are those of the guide."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert 1 == main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [] == told["tasks"][VERIFY]
    assert ["ld", "gpgv"] == told["tasks"][BUILD]
    assert {"mkfs.erofs", "qemu-system-x86_64", "swtpm", "swtpm_setup"} <= set(told["tasks"][BOOT])
    install = shlex.split(told["next"][0])
    assert ["apt-get", "install"] == install[-len(install):][install.index("apt-get"):][:2]
    packages = set(install[install.index("install") + 1:])
    page = (ROOT / "docs/guides/image.md").read_text()
    shown = re.search(r"^apt-get install ((?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert shown is not None
    assert packages <= set(shown[1].replace("\\", " ").split())


@pytest.fixture
def made(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A simulated deployment whose port is free."""
    assert 0 == main(["init", str(tmp_path / "made"), "--model", str(tiny_model), "--yes", "--port",
                      str(images.free_port())])
    capsys.readouterr()
    return tmp_path / "made"


def _doctor(policy: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]], list[str]]:
    code = main(["doctor", str(policy), "--json"])
    told = json.loads(capsys.readouterr().out)
    return code, {each["name"]: each for each in told["lines"] if each["area"] == "policy"}, told["next"]


def test_a_policy_that_lacks_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is valid, its model is there and fits, its key is its owner's."""
    images.need("ld")
    code, lines, following = _doctor(made / "deployment.hcl", capsys)
    assert (0, []) == (code, following), lines
    assert {"check", "platform", "models", "memory", "key of chat"} == set(lines)


def test_the_advice_helps(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that others may read: after the command that it prints, nothing lacks."""
    images.need("ld")
    (made / "keys/model.key").chmod(0o644)
    code, lines, following = _doctor(made / "deployment.hcl", capsys)
    assert (1, "no") == (code, lines["key of chat"]["state"])
    subprocess.run(shlex.split(following[0]), check=True)
    assert 0 == _doctor(made / "deployment.hcl", capsys)[0]


def test_each_thing_that_a_policy_lacks_is_named(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use, a model and a key that are not there, a policy that is not valid; one after the other."""
    policy = made / "deployment.hcl"
    port = int(re.findall(r"port +=\s*(\d+)", policy.read_text())[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert "no" == _doctor(policy, capsys)[1][f"port {port}"]["state"]
    (made / "keys/model.key").unlink()
    assert "no" == _doctor(policy, capsys)[1]["key of chat"]["state"]
    (made / "models/chat.sealed").unlink()
    assert "chat.sealed" in _doctor(policy, capsys)[1]["model"]["found"]
    policy.write_text("appliance {}\n")
    code, lines, following = _doctor(policy, capsys)
    assert (1, "no", [f"appliance check {policy}"]) == (code, lines["check"]["state"], following[-1:])
    policy.unlink()
    assert 2 == main(["doctor", str(policy)])


def test_a_guest_needs_its_tenants_and_its_sealed_key(tmp_path: Path, tiny_model: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine without a TPM the policy needs an image, whose tasks then count."""
    assert 0 == main(["init", str(tmp_path / "made"), "--model", str(tiny_model), "--yes", "--platform", "tpm"])
    capsys.readouterr()
    policy = tmp_path / "made/deployment.hcl"
    code, lines, following = _doctor(policy, capsys)
    assert (1, "yes", "no") == (code, lines["tenants"]["state"], lines["key of chat"]["state"])
    assert any(each.startswith("appliance model tpm-seal ") and "--pcrs 4,9,11,15" in each for each in following)
    (tmp_path / "made/tenants.json").unlink()
    assert "no" == _doctor(policy, capsys)[1]["tenants"]["state"]
    assert (BUILD, BOOT) == examination.examine(policy, root=tmp_path).needed
    here = _root(tmp_path / "tpm", {"dev/tpmrm0": ""})
    assert (SERVE,) == examination.examine(policy, root=here).needed


def test_people_read_it_by_area(capsys: pytest.CaptureFixture[str]) -> None:
    """Areas, then tasks; a line that is not a yes has its advice below."""
    main(["doctor"])
    said = capsys.readouterr().out
    areas = [line for line in said.splitlines() if not line.startswith((" ", "next:"))]
    assert ["machine", "hardware", "programs", "this machine can"] == areas
