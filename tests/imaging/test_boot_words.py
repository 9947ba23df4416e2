"""`appliance image boot` in words: the port, the address, and a QEMU that ends early. A program stands in for QEMU."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.main import main
from tests.support import fake_image
from tests.support.expected import ROOT
from tests.support.policies import with_lines

DEMO = ROOT / "examples/demo.hcl"
READY = "init 4.1: ready on http://10.0.2.15:8080 after 4.1 s"
ENDED = "init    5.0: service ended: exit code 0"


@pytest.fixture
def port() -> Iterator[int]:
    """A port of the loopback that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number: int = taken.getsockname()[1]
    return number


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image without a policy."""
    return fake_image.write(tmp_path / "out")


def _qemu(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of this text where QEMU is looked for."""
    place = folder / "bin"
    place.mkdir()
    program = place / "qemu-system-x86_64"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")


def _boot(image: Path, port: int, *more: str) -> int:
    return main(["image", "boot", str(image), "--policy", str(DEMO), "--port", str(port), "--direct", "--accelerator",
                 "tcg", "--confidential", "none", *more])


def test_a_port_in_use_is_named_before_anything_starts(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """With the option that chooses another."""
    _qemu(tmp_path, monkeypatch, f"touch {tmp_path}/started")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert 2 == _boot(image, number)
    said = capsys.readouterr().err
    assert f"error[port-in-use]: port {number} of this machine's loopback is in use" in said
    assert "--port PORT" in said
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("action", ["build", "boot"])
def test_a_policy_that_no_image_boots_is_refused_first(action: str, image: Path, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """Not after the minutes that a build or a boot takes; the next command tells why."""
    policy = tmp_path / "p.hcl"
    policy.write_text(with_lines("privacy", 'timing_padding { cadence = "10ms" }'))
    words = [str(policy), "-o", str(tmp_path / "new")] if action == "build" else [str(image), "--policy", str(policy)]
    assert 2 == main(["image", action, *words])
    said = capsys.readouterr().err
    assert "error[policy-not-met-here]: privacy.timing_padding.cadence (p.hcl:" in said
    assert f"appliance check {policy}" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("signal", "told"), [
    ("KILL", ("was killed (SIGKILL), as the kernel does where memory is short", "--memory 768")),
    ("TERM", ("was ended by SIGTERM", "start it again"))])
def test_a_qemu_that_was_killed(signal: str, told: tuple[str, ...], image: Path, port: int, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not taken for a guest that was switched off."""
    _qemu(tmp_path, monkeypatch, f"echo begun; kill -{signal} $$")
    assert 2 == _boot(image, port)
    said = capsys.readouterr()
    assert "error[qemu-killed]: QEMU " in said.err
    assert all(words in said.err for words in told)
    assert "begun" in said.out


def test_the_end_of_the_given_time_is_no_error(image: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """Our own signal is not somebody's."""
    _qemu(tmp_path, monkeypatch, "exec sleep 600")
    assert 1 == _boot(image, port, "--seconds", "1")
    assert "error" not in capsys.readouterr().err


def test_the_address_to_use_is_told(image: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, once the guest is ready, with the next command; in the JSON as well."""
    _qemu(tmp_path, monkeypatch, f"echo '{READY}'; echo '{ENDED}'")
    assert 0 == _boot(image, port)
    said = capsys.readouterr()
    assert READY in said.out
    assert (f"from this machine: http://127.0.0.1:{port}; next: appliance verify http://127.0.0.1:{port} "
            f"--policy {DEMO}\n") == said.err
    assert 0 == _boot(image, port, "--json")
    assert f"http://127.0.0.1:{port}" == json.loads(capsys.readouterr().out)["address"]


def test_a_service_that_did_not_end_well(image: Path, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence says so, and where to look."""
    _qemu(tmp_path, monkeypatch, "echo 'init 1.0: boot stopped'")
    assert 1 == _boot(image, port)
    assert "its service did not end well: the console says at which step" in capsys.readouterr().err


def test_the_host_s_documents_are_a_disk_of_the_machine(image: Path, port: int, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only, by the name that the guest looks for; without the option there is none."""
    disk, arguments = tmp_path / "collateral.disk", tmp_path / "arguments"
    _qemu(tmp_path, monkeypatch, f'echo "$@" > {arguments}')
    for more, there in ((("--collateral", str(disk)), True), ((), False)):
        assert 1 == _boot(image, port, *more)
        said = arguments.read_text()
        assert there == (f"file={disk},format=raw,cache=writeback,read-only=on" in said)
        assert there == ("serial=appliance-collateral" in said)
