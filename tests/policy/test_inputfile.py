"""Files that people name are never waited for: a FIFO without its other end is an error, at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from appliance.policy import inputfile
from tests.support import forked
from tests.support.environment import unmeasured
from tests.support.server import Server, write_policy

DEMO = str(Path(__file__).parents[2] / "examples" / "demo.hcl")
SECONDS = 120  # a command that waits for a FIFO waits for ever


def test_reads_files_and_pipes(tmp_path: Path) -> None:
    """A file, up to the bound, and a pipe that somebody writes, also later and in parts."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert (b"content", b"cont", b"") == (inputfile.read(path, 100), inputfile.read(path, 4), inputfile.read(path, 0))
    reader, writer = os.pipe()
    late = threading.Timer(0.2, lambda: (os.write(writer, b"second"), os.close(writer)))
    os.write(writer, b"first ")
    late.start()
    assert b"first second" == inputfile.read(Path(f"/proc/self/fd/{reader}"), 100)
    os.close(reader)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A FIFO without a writer, a folder, nothing: told apart, and nothing waits."""
    os.mkfifo(tmp_path / "fifo")
    for name, words in (("fifo", "a FIFO that nobody writes to"), ("", "Is a directory"), ("absent", "No such file")):
        with pytest.raises(OSError, match=words):
            inputfile.read(tmp_path / name, 10)
    with pytest.raises(OSError, match="not a regular file"):
        inputfile.require_regular(tmp_path / "fifo")


COMMANDS = [
    ["check", "FIFO"], ["serve", "FIFO"], ["approve", DEMO, "--key", "FIFO"], ["approve", DEMO, "--approvals", "FIFO"],
    ["approve", DEMO, "--signature", "FIFO", "--as", "x"], ["tenants", "FIFO", "--policy", DEMO],
    ["model", "inspect", "FIFO"], ["tokenize", "FIFO", "x"], ["evidence", "FIFO"], ["verify", "FIFO", "--policy", DEMO],
    ["verify", "x", "--policy", DEMO, "--measurements", "FIFO", "--measurements-unsigned"],
    ["verify", "x", "--policy", DEMO, "--approvals", "FIFO"], ["state", "FIFO", "--key", "FIFO"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_waits_for_a_fifo(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file it is, the command ends by itself, and says what it cannot do."""
    os.mkfifo(tmp_path / "FIFO")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "said").open("wb") as said:
        process = forked.start(command, unmeasured(), out=said.fileno(), err=said.fileno())
    try:
        assert 2 == process.wait(SECONDS), (tmp_path / "said").read_text()
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "said").read_text()


@pytest.mark.parametrize("what", ["log", "tenants", "approvals", "certificate"])
def test_no_boot_waits_for_a_fifo(what: str, tmp_path: Path, tiny_model: Path) -> None:
    """The audit log, the list of tenants, approvals, a TLS certificate: the boot stops, and names the file."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    policy = write_policy(tmp_path, {"tiny": tiny_model})
    text = policy.read_text()
    if what == "tenants":
        begin, end = text.index("tenants {"), text.index("service {")
        text = f'{text[:begin]}tenants {{\n authority = "ed25519:{"ab" * 32}"\n list = "fifo"\n}}\n{text[end:]}'
    if what == "approvals":
        text += f'approvals {{\n required = 1\n approver "x" {{\n public_key = "ed25519:{"ab" * 32}"\n }}\n}}\n'
        (tmp_path / "fifo").rename(tmp_path / "policy.hcl.approvals")
    if what == "certificate":
        listen = (f'kind = "tls"\n port = 8080\n certificate = "{tmp_path}/fifo"\n private_key = "{tmp_path}/fifo"')
        text = text.replace('kind = "tcp"\n    port = 8080', listen)
    policy.write_text(text)
    server = Server(policy, [tiny_model], log=tmp_path / "fifo" if what == "log" else None)
    assert 2 == server.process.wait(SECONDS), server.text("stderr")
    assert "boot stopped at step" in server.text("stderr")
    assert ("policy.hcl.approvals" if what == "approvals" else "fifo" if what != "certificate" else "certificate") in (
        server.text("stderr"))
