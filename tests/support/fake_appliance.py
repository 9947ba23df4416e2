"""An appliance in miniature for clients to verify: real TLS, evidence by a fake vendor, and a record of every byte.

The server keeps what it received, decrypted, so that a test can show that nothing left too early. Its key and evidence
can be changed while it runs.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from appliance.attestation import binding
from appliance.attestation.case import measurements
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm import credential as tpm_credential
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import Reference, Verifier
from appliance.client.reference import KnownImage
from appliance.errors import AttestationError
from appliance.policy import Loaded, load
from appliance.policy.digest import host_data
from appliance.tls import TlsStream, server_context
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel

MODEL = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAUNCH, MRTD = b"\x11" * 48, b"\x22" * 48
RTMRS = (None, b"\x31" * 48, b"\x32" * 48, None)
POLICY = """\
appliance {{
  name   = "hard"
  schema = 1
}}
tee {{
  platforms = {platforms}
  evidence {{
{evidence}
  }}
}}
model "demo" {{
  file   = "demo.gguf"
  sha256 = "{model}"
{inside}}}
tenants {{
  {tenants}
}}
service {{
  listen "api" {{
    kind = "{kind}"
    port = 8443
  }}
}}
{more}
"""
INLINE = 'tenant "a" {\n models = ["demo"]\n api_key_sha256 = ["' + "ab" * 32 + '"]\n }'
AUTHORITY = "ed25519:8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
LISTED = f'authority = "{AUTHORITY}"\n  list = "t.json"'


def write_policy(folder: Path, *platforms: str, evidence: str = "sev_snp {\n min_tcb { snp = 10 }\n }", more: str = "",
                 kind: str = "ra-tls", name: str = "deployment.hcl", model: str = "") -> Path:
    """A policy for platforms; `evidence`, `more` and what is in the block of the `model` are HCL."""
    path = folder / name
    path.write_text(POLICY.format(
        platforms=json.dumps(list(platforms)), evidence=evidence, model=MODEL, kind=kind, more=more,
        inside=f"{model}\n" if model else "",
        tenants=INLINE if platforms == ("simulated",) else LISTED))
    return path


def measured(*, launch: tuple[bytes, ...] = (LAUNCH,), policy: str | None = None, mrtd: bytes = MRTD,
             rtmrs: tuple[bytes | None, ...] = RTMRS) -> measurements.Measurements:
    """Measurements of an image: one launch digest for each number of vCPUs from 1 on."""
    digest = "00" * 32
    return measurements.Measurements.model_validate({
        "format": measurements.FORMAT, "build": {"version": "0.1.0", "code_sha384": None, "kernels_sha384": None},
        "image": {"root.img": digest}, "policy_sha384": policy, "tpm": None,
        "sev_snp": [{"vmm": "qemu", "vcpus": count, "cpu_model": "EPYC-v4", "guest_features": "0x1",
                     "firmware_sha256": digest, "launch_digest": each.hex(), "id_block": None}
                    for count, each in enumerate(launch, start=1)],
        "tdx": [{"firmware_sha256": digest, "page_order": "page", "mrtd": mrtd.hex(), "unverified": (),
                 "rtmr": tuple(None if each is None else each.hex() for each in rtmrs)}]})


@dataclass
class SnpSource:
    """A provider of SEV-SNP reports by a hierarchy of ours; `fields` change what a report says."""

    amd: FakeAmd
    host_data: bytes
    fields: dict[str, Any] = field(default_factory=dict)
    platform: str = "sev-snp"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A signed report, and the certificates that travel with it."""
        report = self.amd.report(**{"report_data": report_data, "host_data": self.host_data, "measurement": LAUNCH,
                                    **self.fields})
        return ReportWithCollateral(report, tuple(
            each.public_bytes(Encoding.DER) for each in (self.amd.leaf, self.amd.ask, self.amd.ark)))


@dataclass
class TdxSource:
    """A provider of TDX quotes."""

    intel: FakeIntel
    mr_config_id: bytes
    fields: dict[str, Any] = field(default_factory=dict)
    platform: str = "tdx"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A signed quote; Intel's documents are the verifier's to fetch."""
        rtmrs = {f"rtmr{number}": value for number, value in enumerate(RTMRS) if value is not None}
        return ReportWithCollateral(self.intel.quote(**{
            "report_data": report_data, "mr_config_id": self.mr_config_id, "mr_td": MRTD, **rtmrs, **self.fields}))


def activation_answer(answer: bytes) -> bytes:
    """An answer to a challenge in JSON."""
    return json.dumps({"format": tpm_credential.FORMAT, "answer": answer.hex()}).encode()


def attestor(provider: Provider, policy: Loaded, *, spki_sha256: bytes | None = None,
             models: dict[str, str] | None = None) -> Attestor:
    """An attestor with the policy's model loaded."""
    made = Attestor(provider, BoundFacts(policy.digest, hashlib.sha384(b"self-test").digest(),
                                    binding.Build(version="0.1.0")))
    made.new_generation(binding.LoadedModel(name=name, sha256=sha256)
                        for name, sha256 in ({"demo": MODEL} if models is None else models).items())
    if spki_sha256 is not None:
        made.bind_tls_key(spki_sha256)
    return made


def certificate(key: ec.EllipticCurvePrivateKey, *, signer: ec.EllipticCurvePrivateKey | None = None,
                issuer: str = "appliance", start: datetime = NOW - timedelta(days=1),
                end: datetime = NOW + timedelta(days=1)) -> bytes:
    """A DER certificate for a key, self-signed by default."""
    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    return x509.CertificateBuilder().subject_name(name("appliance")).issuer_name(name(issuer)).public_key(
        key.public_key()).serial_number(1).not_valid_before(start).not_valid_after(end).sign(
        signer or key, hashes.SHA256()).public_bytes(Encoding.DER)


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    """SHA-256 of the DER SubjectPublicKeyInfo."""
    return hashlib.sha256(key.public_key().public_bytes(
        Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)).digest()


def key() -> ec.EllipticCurvePrivateKey:
    """A TLS key."""
    return ec.generate_private_key(ec.SECP256R1())


def verifier(policy: Path, *, roots: Roots, at: datetime = NOW, known: measurements.Measurements | None = None,
             collateral: Collateral | None = None, **options: Any) -> Verifier:
    """A verifier of a policy whose clock stands at `at`."""
    reference = Reference(load(policy), KnownImage(measured() if known is None else known, b"\x01" * 32),
                          collateral=collateral or Collateral(), roots=roots, **options)
    return Verifier(reference, clock=lambda: at)


class FakeAppliance(ThreadingHTTPServer):
    """Listens on a free port of the loopback. `received`: every byte of every request, decrypted, in order.

    `evidence`: what answers a nonce. `pieces`: the server-sent events of an answer, each after `delay` seconds; the
    answer begins when `hold` returns.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, made: Attestor, folder: Path, *, tls: bool = True, host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.attestor, self.folder, self.tls = made, folder, tls
        self.evidence: Callable[[bytes], bytes] = self.attest
        self.connection = threading.local()  # `session`: of the TLS connection that this thread answers
        self.activation: Callable[[bytes], tuple[int, bytes]] = self.activate
        self.received = bytearray()
        self.asked: list[str] = []
        self.status: tuple[int, str] | None = None  # what answers instead: a status, and where to go to
        self.hold: Callable[[], object] = lambda: None
        self.raw: Callable[[Callable[[bytes], object]], object] | None = None  # writes an answer as it likes
        self.mute = False               # no answer begins: it waits until the client goes away
        self.gone = threading.Event()   # a client went away while it was answered
        self.pieces, self.delay = [b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"], 0.0
        self.at_once = False            # an answer's pieces and its end go out in one write
        self.context: SSL.Context | None = None
        if tls:
            self.rotate()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        """Its address."""
        host = "[::1]" if self.address_family == socket.AF_INET6 else "127.0.0.1"
        return f"{'https' if self.tls else 'http'}://{host}:{self.server_address[1]}"

    def attest(self, nonce: bytes) -> bytes:
        """Evidence for a nonce, of the TLS session that it was asked on."""
        session = None if self.context is None else self.connection.session.exporter(nonce)
        return self.attestor.attest_all([nonce], None, [session])[0].to_json()

    def activate(self, challenge: bytes) -> tuple[int, bytes]:
        """Status and body: the TPM's answer, or that it does not open the challenge."""
        try:
            return 200, activation_answer(self.attestor.activate(challenge))
        except AttestationError as error:
            return 400, json.dumps({"error": {"code": error.code}}).encode()

    def rotate(self, fresh: ec.EllipticCurvePrivateKey | None = None, *, bind: bool = True,
               der: bytes | None = None) -> None:
        """A new TLS key for connections to come, bound in evidence by default."""
        made = fresh or key()
        context = server_context(made, [x509.load_der_x509_certificate(der or certificate(made))])
        if bind:
            self.attestor.bind_tls_key(spki(made))
        self.context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: the handshake, then requests."""
        with contextlib.suppress(OSError):
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = request if self.context is None else TlsStream(request, self.context, server=True)
            self.connection.session = getattr(secured, "session", None)
            super().finish_request(secured, client_address)
            secured.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""

    def stop(self) -> None:
        """End it."""
        self.shutdown()
        self.server_close()


class _Recording:
    """A file of a connection that keeps what is read from it."""

    def __init__(self, inner: Any, record: bytearray) -> None:
        self._inner, self._record = inner, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def readline(self, *size: int) -> bytes:
        data: bytes = self._inner.readline(*size)
        self._record.extend(data)
        return data

    def read(self, *size: int) -> bytes:
        data: bytes = self._inner.read(*size)
        self._record.extend(data)
        return data


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeAppliance

    def setup(self) -> None:
        super().setup()
        self.rfile = _Recording(self.rfile, self.server.received)  # type: ignore[assignment]

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path.partition('?')[0]}")
        if self.server.status is not None and not self.path.startswith("/v1/attestation?nonce="):
            self._elsewhere(*self.server.status)
            return
        if self.path.startswith("/v1/attestation?nonce="):
            self._answer(200, self.server.evidence(bytes.fromhex(self.path.partition("=")[2])))
        elif self.path.startswith("/v1/attestation/activation?challenge="):
            self._answer(*self.server.activation(base64.urlsafe_b64decode(self.path.partition("=")[2] + "==")))
        else:
            said = {"path": self.path, "headers": list(map(list, self.headers.items()))}
            self._answer(200, json.dumps(said).encode())

    def do_POST(self) -> None:
        try:
            self.rfile.read(int(self.headers["Content-Length"]))
        except OSError:  # the client goes away before all of its request is here
            self.server.gone.set()
            self.close_connection = True
            return
        finally:
            self.server.asked.append(f"POST {self.path}")
        if self.server.status is not None:
            self._elsewhere(*self.server.status)
            return
        self.server.hold()
        if self.server.raw is not None:
            try:
                self.server.raw(self.wfile.write)
            except OSError:
                self.server.gone.set()
            self.close_connection = True
            return
        if self.server.mute:
            with contextlib.suppress(OSError):
                self.connection.recv(1)
            self.server.gone.set()
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            if self.server.at_once:
                self.wfile.write(b"".join(map(_chunk, [*self.server.pieces, b""])))
                return
            for piece in self.server.pieces:
                self.wfile.write(_chunk(piece))
                time.sleep(self.server.delay)
            self.wfile.write(_chunk(b""))
        except OSError:
            self.server.gone.set()
            self.close_connection = True

    def _elsewhere(self, status: int, place: str) -> None:
        self.send_response(status)
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


@contextlib.contextmanager
def simulated(folder: Path, *, tls: bool = True) -> Iterator[tuple[FakeAppliance, Path]]:
    """A running simulated appliance and its policy."""
    path = write_policy(folder, "simulated", kind="ra-tls" if tls else "tcp")
    policy = load(path)
    server = FakeAppliance(attestor(SimulatedProvider(policy.host_data), policy), folder, tls=tls)
    try:
        yield server, path
    finally:
        server.stop()


@contextlib.contextmanager
def snp(folder: Path, amd: FakeAmd, *, evidence: str | None = None, model: str = "",
        **fields: Any) -> Iterator[tuple[FakeAppliance, Path]]:
    """A running appliance on SEV-SNP by a hierarchy of ours, and its policy; `evidence` and `model` are HCL."""
    path = write_policy(folder, "sev-snp", model=model, **{} if evidence is None else {"evidence": evidence})
    policy = load(path)
    server = FakeAppliance(attestor(SnpSource(amd, host_data(policy.digest), fields), policy), folder)
    try:
        yield server, path
    finally:
        server.stop()

