"""Evidence of this very connection: whoever once got a TLS key of an accepted machine relays evidence in vain.

The attacker holds a key that leaked from a genuine service, shows a certificate for it, passes a client's nonce on over
a connection of their own, and gives back what the service says. Services run by hardware policies on fake machines.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from appliance.attestation.trust.roots import Roots
from appliance.client import Channel, Verdict, Verifier, target
from appliance.client.connection import Connection, connect
from appliance.client.reference import KnownImage, Reference
from appliance.client.verdict import KEY_BOUND, NOT_MET, UNCHECKED, VERIFIED
from appliance.errors import RejectedEvidenceError
from appliance.policy import load
from appliance.tls import TlsStream, server_context
from tests.service.test_hardware_service import running
from tests.support import fake_appliance, hardware_server, waiting, written

ROOT = Path(__file__).parents[2]


class Machine:
    """A genuine service whose TLS keys leak."""

    def __init__(self, url: str, out: Path) -> None:
        self.url, self.out = url, out
        self.roots = Roots(amd=json.loads((out / "roots.json").read_text()))

    def keys(self) -> list[ec.EllipticCurvePrivateKey]:
        """Those that leaked so far, oldest first."""
        found = [json.loads(line) for line in written.lines(self.out / "stderr") if '"leak"' in line]
        return [load_pem_private_key(each["key"].encode(), None) for each in found]  # type: ignore[misc]

    def verifier(self, **more: Any) -> Verifier:
        """A client's verifier, with the true roots of this machine."""
        known = KnownImage(fake_appliance.measured(launch=(hardware_server.MEASUREMENT,)))
        policy = load(self.out / "policy.hcl")
        return Verifier(Reference(policy, known, need_revocation=False, roots=self.roots, **more))

    def connection(self) -> Connection:
        """A connection of the attacker's own."""
        return connect(target.endpoint(self.url))


class Relay(ThreadingHTTPServer):
    """The attacker in between: TLS with a key of theirs, evidence by a connection of theirs. All else is kept."""

    daemon_threads = True

    def __init__(self, key: ec.EllipticCurvePrivateKey, upstream: Callable[[], Connection]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        now = dt.datetime.now(dt.UTC)
        shown = fake_appliance.certificate(key, start=now - dt.timedelta(hours=1), end=now + dt.timedelta(hours=1))
        self.context = server_context(key, [x509.load_der_x509_certificate(shown)])
        self.upstream, self.seen = upstream, list[tuple[str, bytes]]()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients are led to."""
        return f"https://127.0.0.1:{self.server_address[1]}"

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands, then answer."""
        with contextlib.suppress(OSError):
            secured = TlsStream(request, self.context, server=True)
            socketserver.TCPServer.finish_request(self, secured, client_address)  # type: ignore[arg-type]
            secured.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that refuse go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def do_GET(self) -> None:
        status, body = 502, b""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self.server.upstream().request("GET", self.path, [("Host", "appliance.example")])
            status, body = answer.status, answer.read()
        self._answer(status, body)

    def do_POST(self) -> None:
        self.server.seen.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self._answer(200, b"{}")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextlib.contextmanager
def relay(key: ec.EllipticCurvePrivateKey, upstream: Callable[[], Connection]) -> Iterator[Relay]:
    """A relay that runs."""
    found = Relay(key, upstream)
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()


@contextlib.contextmanager
def _machine(folder: Path, model: Path, service: str = "", rotation: int = 3_600_000) -> Iterator[Machine]:
    policy = hardware_server.write(folder, "sev-snp", model, schema=2, service=service)
    with running("sev-snp", policy, model, folder, str(rotation), "leak") as url:
        yield Machine(url, folder)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Machine]:
    """A machine by the default policy."""
    with _machine(tmp_path_factory.mktemp("genuine"), tiny_model) as machine:
        yield machine


def _failed(verdict: Verdict) -> set[str]:
    return {each.rule for each in verdict.findings if each.outcome == "fails"}


def _outcome(verdict: Verdict, rule: str) -> str:
    return next(each.outcome for each in verdict.findings if each.rule == rule)


def test_the_machine_itself_is_verified(genuine: Machine) -> None:
    """By evidence of the session, over a hybrid key exchange."""
    verdict = genuine.verifier().verify(genuine.url)
    assert (VERIFIED, "holds") == (verdict.status, _outcome(verdict, "session")), verdict
    assert "WARNING" not in str(verdict)
    with genuine.connection() as connection:
        assert isinstance(connection._socket, TlsStream)
        assert "X25519MLKEM768" == connection._socket.session.key_exchange


def test_an_independent_reader_of_the_specification(genuine: Machine) -> None:
    """A script that shares nothing with the product finds that the evidence is of its own connection."""
    endpoint = target.endpoint(genuine.url)
    words = [sys.executable, "-P", str(ROOT / "examples/session_evidence.py"), endpoint.host, str(endpoint.port)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (0, 6) == (done.returncode, done.stdout.count("holds  ")), done.stdout + done.stderr
    assert "appliance" not in "".join(
        line for line in (ROOT / "examples/session_evidence.py").read_text().splitlines() if "import " in line)


def test_a_kept_connection_of_a_leaked_key(genuine: Machine) -> None:
    """The very key, the very machine, another connection: refused, and `connect` sends it nothing."""
    kept = genuine.connection()
    with relay(genuine.keys()[0], lambda: kept) as attacker:
        verdict = genuine.verifier().verify(attacker.url)
        assert (NOT_MET, {"session"}) == (verdict.status, _failed(verdict)), verdict
        assert "relay: session: the evidence is of another connection" in verdict.reason
        channel = Channel(genuine.verifier(), target.endpoint(attacker.url))
        with pytest.raises(RejectedEvidenceError, match="relay"):
            channel.take()
        assert [] == attacker.seen
    kept.close()


def test_a_new_connection_for_each_nonce(genuine: Machine) -> None:
    """It has yet another session."""
    with relay(genuine.keys()[0], genuine.connection) as attacker:
        verdict = genuine.verifier().verify(attacker.url)
    assert (NOT_MET, {"session"}) == (verdict.status, _failed(verdict)), verdict


def test_another_machines_key(genuine: Machine, tmp_path: Path, tiny_model: Path) -> None:
    """A key that leaked from a machine that clients accept as well."""
    with _machine(tmp_path, tiny_model) as other, relay(other.keys()[0], genuine.connection) as attacker:
        verdict = genuine.verifier().verify(attacker.url)
    assert (NOT_MET, {"session", "tls-key"}) == (verdict.status, _failed(verdict)), verdict


def test_a_key_that_was_retired(tmp_path: Path, tiny_model: Path) -> None:
    """After its grace there is no evidence of it, and no connection."""
    with _machine(tmp_path, tiny_model, rotation=5000) as machine:
        kept = machine.connection()
        first = machine.keys()[0]
        waiting.until(lambda: not kept.usable, "end of the connection of a retired key",
                      lambda: len(machine.keys()))
        assert 2 <= len(machine.keys())
        with relay(first, lambda: kept) as attacker:
            verdict = machine.verifier().verify(attacker.url)
        assert (UNCHECKED, "no-evidence") == (verdict.status, verdict.code), verdict


def test_what_remains_where_evidence_is_of_a_key(tmp_path: Path, tiny_model: Path) -> None:
    """A policy for clients without an exporter says so in each verdict, with an exit code of its own; the relay of a
    leaked key then passes until the key is retired, and a proxy with a key of its own does not."""
    with _machine(tmp_path, tiny_model, service='session_binding = "key"') as machine:
        verdict = machine.verifier().verify(machine.url)
        assert (KEY_BOUND, 6, "not checked") == (verdict.status, verdict.exit_code, _outcome(verdict, "session"))
        accepted = machine.verifier(key_bound=True).verify(machine.url)
        assert (VERIFIED, True) == (accepted.status, "WARNING: the evidence is of the TLS key" in str(accepted))
        with relay(machine.keys()[0], machine.connection) as attacker:
            assert KEY_BOUND == machine.verifier().verify(attacker.url).status
        with relay(ec.generate_private_key(ec.SECP256R1()), machine.connection) as proxy:
            verdict = machine.verifier(key_bound=True).verify(proxy.url)
        assert (NOT_MET, {"tls-key"}) == (verdict.status, _failed(verdict)), verdict
        assert "splice" in verdict.reason


def test_a_proxy_that_ends_tls(genuine: Machine) -> None:
    """It has a key of its own, which no evidence names, and a session of its own."""
    with relay(ec.generate_private_key(ec.SECP256R1()), genuine.connection) as proxy:
        verdict = genuine.verifier().verify(proxy.url)
    assert (NOT_MET, {"session", "tls-key"}) == (verdict.status, _failed(verdict)), verdict


def test_a_demanded_key_exchange(tmp_path: Path, tiny_model: Path) -> None:
    """A client without ML-KEM gets no answer where the policy demands a post-quantum exchange."""
    import ssl

    with _machine(tmp_path, tiny_model, service='tls {\n key_exchange = "post-quantum"\n }') as machine:
        assert VERIFIED == machine.verifier().verify(machine.url).status
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ecdh_curve("prime256v1")
        endpoint = target.endpoint(machine.url)
        with contextlib.suppress(OSError), socket.create_connection(
                (endpoint.host, endpoint.port), 20) as raw, context.wrap_socket(raw) as classic:
            classic.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"" == classic.recv(100)
