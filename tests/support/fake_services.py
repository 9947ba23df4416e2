"""AMD's KDS and Intel's PCS on the loopback, with what hierarchies of our own sign."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.snp.judging.abi import SnpTcb
from tests.support.fake_amd import CHIP, TURIN_CHIP, FakeAmd
from tests.support.fake_intel import FMSPC, FakeIntel


@dataclass(frozen=True)
class Answer:
    """A service's answer to a GET."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Answers = dict[str, list[Answer]]  # by path and query; one after the other, the last again and again


def amd(fake: FakeAmd) -> Answers:
    """KDS as 57230 has it: DER leaf and list, PEM chain."""
    tcb, key = SnpTcb.decode(fake.raw_tcb, fake.product), "vlek" if fake.vlek else "vcek"
    chip = TURIN_CHIP[:8] if fake.product == "Turin" else CHIP
    levels = f"blSPL={tcb.bootloader}&teeSPL={tcb.tee}&snpSPL={tcb.snp}&ucodeSPL={tcb.microcode}"
    levels = levels if tcb.fmc is None else f"fmcSPL={tcb.fmc}&{levels}"
    top = f"/{key}/v1/{fake.product}"
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (fake.ask, fake.ark))
    return {f"{top}/{chip.hex()}?{levels}": [Answer(fake.leaf.public_bytes(Encoding.DER))],
            f"{top}/cert_chain": [Answer(chain)], f"{top}/crl": [Answer(fake.crl().public_bytes(Encoding.DER))]}


def intel(fake: FakeIntel | Mapping[str, str]) -> Answers:
    """PCS, version 4: JSON with its signers' certificates in a header, lists in DER. Of a hierarchy, or of what its
    `document` gave."""
    parts = fake.document() if isinstance(fake, FakeIntel) else fake

    def signed(name: str, part: str, header: str) -> Answer:
        body = f'{{"{name}":{parts[part]},"signature":"{parts[f"{part}_signature"]}"}}'
        return Answer(body.encode(), headers={header: quote(parts[f"{part}_issuer_chain"])})

    return {f"/tdx/certification/v4/tcb?fmspc={FMSPC.hex().upper()}": [
                signed("tcbInfo", "tcb_info", "TCB-Info-Issuer-Chain")],
            "/tdx/certification/v4/qe/identity": [
                signed("enclaveIdentity", "qe_identity", "SGX-Enclave-Identity-Issuer-Chain")],
            "/sgx/certification/v4/pckcrl?ca=platform&encoding=der": [Answer(bytes.fromhex(parts["pck_crl"]))],
            "/IntelSGXRootCA.der": [Answer(bytes.fromhex(parts["root_ca_crl"]))]}


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[tuple[str, list[str]]]:
    """Its base URL, and the list of what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = answers.get(self.path, [Answer(b"not found", 404)])
            answer = known[min(asked.count(self.path), len(known)) - 1]
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
