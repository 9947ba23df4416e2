"""`appliance serve`: what stops it, and with which exit code."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from appliance.errors import BootError
from appliance.http.listen import listen_tcp, listen_unix
from tests.support import forked
from tests.support.environment import unmeasured
from tests.support.server import Server, write_policy


def _serve(*words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["serve", *words], unmeasured())


def test_findings_exit_with_1(tmp_path: Path) -> None:
    """A policy with findings is not booted; they are told, for people or as JSON."""
    path = tmp_path / "policy.hcl"
    path.write_text('appliance { name = "x" }\n')
    done = _serve(str(path))
    assert 1 == done.returncode
    assert "schema" in done.stderr
    done = _serve(str(path), "--json")
    assert (1, "refused") == (done.returncode, json.loads(done.stderr)["event"])


def test_refused_boots_exit_with_2(tmp_path: Path, tiny_model: Path) -> None:
    """A missing file, a choice that the policy does not grant, and a model that is not there are refused."""
    assert 2 == _serve(str(tmp_path / "none.hcl")).returncode
    policy = write_policy(tmp_path, {"tiny": tiny_model})
    done = _serve(str(policy), "--models", str(tiny_model.parent), "--listen-address", "127.0.0.2")
    assert (2, True) == (done.returncode, "listen_address" in done.stderr)
    done = _serve(str(policy))
    assert (2, True) == (done.returncode, "tiny.gguf" in done.stderr)


STEPS = ["policy", "hardening", "self-test", "key-release", "state", "models", "attestation", "service"]


def test_the_console_reports_each_step_with_its_verdict(service: Server) -> None:
    """Every step is told as it ends, by name and verdict, and then where the service listens."""
    told = [json.loads(line) for line in service.text("stderr").splitlines() if line.startswith("{")]
    steps = [record for record in told if record["event"] == "step"]
    assert STEPS == [record["step"] for record in steps]
    assert {"passed", "skipped"} <= {record["verdict"] for record in steps} <= {"passed", "skipped", "tolerated"}
    assert "ready" == told[len(steps)]["event"]


def test_the_console_tells_which_step_failed(tmp_path: Path, tiny_model: Path) -> None:
    """A boot that fails ends its report with the step, and then one diagnostic."""
    policy = write_policy(tmp_path, {"tiny": tiny_model})
    data = tiny_model.read_bytes()
    (tmp_path / tiny_model.name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # not what the policy pins
    lines = _serve(str(policy)).stderr.splitlines()
    assert any(line.split()[:2] == ["models", "failed"] for line in lines)
    assert any("boot stopped at step models" in line for line in lines)


ANY = """listen "api" {
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
  }"""


def test_the_console_names_no_address_that_clients_cannot_use(tmp_path: Path, tiny_model: Path) -> None:
    """A listener on every address of the machine is told as one, and no question is shown that TLS would refuse."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, listeners=ANY)
    with forked.piped(["serve", str(policy), "--listen-port", "0", "--models", str(tiny_model.parent)],
                      unmeasured()) as it:
        assert it.stderr is not None
        told = []
        while not told or not told[-1].startswith(("ready on", "error")):
            told.append(it.stderr.readline().decode())
        it.terminate()
        rest = it.stderr.read().decode()
    assert told[-1].startswith("ready on https://ADDRESS:"), told
    assert "0.0.0.0" not in "".join(told) + rest  # noqa: S104
    assert "openai" not in rest


def test_a_taken_port_is_told(service: Server, tmp_path: Path) -> None:
    """Two cannot listen on one port, nor on one Unix socket; a socket that nobody serves is replaced."""
    with pytest.raises(BootError, match="cannot listen on"):
        listen_tcp("api", "127.0.0.1", int(service.url.rpartition(":")[2]))
    path = tmp_path / "api.sock"
    first = listen_unix("local", path)
    assert 0o600 == path.stat().st_mode & 0o777
    with pytest.raises(BootError, match="cannot listen on"):
        listen_unix("local", path)
    first.socket.close()  # as a killed process leaves it
    second = listen_unix("local", path)
    second.close()
    assert not path.exists()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "localhost", ""])  # noqa: S104
def test_plain_tcp_stays_on_the_machine(address: str) -> None:
    """Whatever the operator was granted, plain TCP listens on loopback only."""
    with pytest.raises(BootError):
        listen_tcp("api", address, 0)


def test_loopback_of_both_kinds() -> None:
    """IPv4 and IPv6 loopback work, where the machine has them."""
    first = listen_tcp("api", "127.0.0.1", 0)
    assert f"http://127.0.0.1:{first.socket.getsockname()[1]}" == first.url
    first.close()
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text():
        second = listen_tcp("api", "::1", 0)
        assert second.url.startswith("http://[::1]:")
        second.close()
