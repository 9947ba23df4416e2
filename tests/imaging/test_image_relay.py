"""The one way out of a guest: what QEMU starts for each connection to the broker's address, and how it is told to."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.imaging.qemu import relay
from appliance.imaging.qemu.machine import Machine, Reach


def test_bytes_pass_both_ways_and_ends_are_told() -> None:
    """A guest's end that says no more still hears the answer; then the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        guest, inside = socket.socketpair()
        process = subprocess.Popen([sys.executable, "-I", "-S", str(relay.__file__), "127.0.0.1",
                                    str(listener.getsockname()[1])], stdin=inside, stdout=inside)
        inside.close()
        server, _ = listener.accept()
        with guest, server:
            for each in (guest, server):
                each.settimeout(20)
            guest.sendall(b"question")
            guest.shutdown(socket.SHUT_WR)
            assert b"question" == server.recv(100)
            assert b"" == server.recv(100)
            server.sendall(b"answer")
            server.shutdown(socket.SHUT_WR)
            assert b"answer" == guest.recv(100)
            assert b"" == guest.recv(100)
        assert 0 == process.wait(20)


def test_qemu_is_told_of_one_address_and_shuts_off_the_rest() -> None:
    """`restrict=on` stands whatever is forwarded, and the command's words are those of one process."""
    machine = Machine(Path("x"), "tcg", 512, forwards=(Reach("127.0.0.1", 9443),))
    [network] = [word for word in machine._network() if word.startswith("user,")]
    assert network.startswith("user,id=net,restrict=on,guestfwd=tcp:10.0.2.100:9443-cmd:")
    command = network.partition("-cmd:")[2].replace(",,", ",")
    assert ["127.0.0.1", "9443"] == shlex.split(command)[-2:]
    assert 1 == network.count("guestfwd")


@pytest.mark.parametrize("text", ["", "9443", "host:", "host:x", "host:0", "host:65536"])
def test_addresses_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage says what is expected."""
    with pytest.raises(SystemExit):
        main(["image", "boot", "x", "--broker", text])
    assert "expected HOST:PORT" in capsys.readouterr().err
