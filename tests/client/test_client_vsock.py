"""vsock URLs: the same verdicts over AF_VSOCK as over TCP, on Linux; a clear word where a system has none.

The kernels that run these tests seldom have a vsock loopback, so the one thing that stands in is the address family:
a socket made for AF_VSOCK is one of AF_INET, and its context identifier leads to the loopback. All above the kernel's
`connect` is the real client and real TLS. `test_service_tls` has the listening side on a real AF_VSOCK socket.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.attestation.trust.roots import Roots
from appliance.cli.main import main
from appliance.client import Channel, Verifier, target, transport
from appliance.client.proxy import Proxy
from appliance.client.verdict import UNCHECKED, VERIFIED
from appliance.errors import PolicyError
from tests.client.test_client_verify import _crl
from tests.support import fake_appliance as fake
from tests.support.fake_amd import FakeAmd
from tests.support.fake_appliance import FakeAppliance

AMD = FakeAmd("Genoa")
CID = 7
VSOCK = 40  # AF_VSOCK of Linux
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "the-canary"}], "max_tokens": 1}


class _Standing(socket.socket):
    """A socket whose AF_VSOCK is the loopback of TCP; `dialled` keeps what was asked for."""

    dialled: list[tuple[Any, ...]] = []  # noqa: RUF012 - one list for all

    def __init__(self, family: int = -1, *more: Any, **words: Any) -> None:
        self.vsock = family == VSOCK
        super().__init__(socket.AF_INET if self.vsock else family, *more, **words)

    def connect(self, address: Any) -> None:
        if self.vsock:
            self.dialled.append(address)
            address = ("127.0.0.1", address[1])
        super().connect(address)


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeAppliance, Path, str]]:
    """An appliance on SEV-SNP, its policy and its vsock URL."""
    with fake.snp(tmp_path, AMD) as (server, path):
        monkeypatch.setattr(socket, "AF_VSOCK", VSOCK, raising=False)
        monkeypatch.setattr(socket, "socket", _Standing)
        _Standing.dialled.clear()
        yield server, path, f"vsock://{CID}:{server.server_address[1]}"


def _verifier(path: Path) -> Verifier:
    return fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=_crl(AMD))


def test_an_appliance_is_verified_over_vsock(running: tuple[FakeAppliance, Path, str]) -> None:
    """TLS, certificate, nonce and evidence as over TCP; a key that is not bound is refused."""
    server, path, url = running
    verdict = _verifier(path).verify(url)
    assert (VERIFIED, url) == (verdict.status, verdict.target)
    assert {(CID, server.server_address[1])} == set(_Standing.dialled)
    server.rotate(bind=False)
    assert "evidence-tls-key" == _verifier(path).verify(url).code


def test_an_sdk_over_vsock(running: tuple[FakeAppliance, Path, str]) -> None:
    """The official client through the local proxy, and with the httpx transport."""
    server, path, url = running
    server.pieces = [b"data: [DONE]\n\n"]
    channel = Channel(_verifier(path), target.endpoint(url))
    with Proxy(channel) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        list(openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k").chat.completions.create(**CHAT, stream=True))
        proxy.shutdown()
        thread.join()
    channel.close()
    with httpx.Client(transport=transport(_verifier(path))) as plain:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", http_client=plain)
        list(client.chat.completions.create(**CHAT, stream=True))
    assert ["GET /v1/attestation", "POST /v1/chat/completions"] * 2 == server.asked


def test_a_system_without_vsock_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """macOS and Windows have no such sockets: could not check, and what to do instead."""
    monkeypatch.delattr(socket, "AF_VSOCK", raising=False)
    path = fake.write_policy(tmp_path, "simulated", kind="ra-tls")
    assert 2 == main(["verify", "vsock://3:8443", "--policy", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (UNCHECKED, "vsock-absent") == (found["verdict"], found["code"])
    assert "Linux" in found["hint"]


def test_nobody_answers_on_vsock(tmp_path: Path) -> None:
    """The loopback, with or without a driver for it: the kernel's word, and no traceback."""
    if not hasattr(socket, "AF_VSOCK"):
        pytest.skip("this system has no vsock")
    path = fake.write_policy(tmp_path, "simulated", kind="ra-tls")
    verdict = fake.verifier(path, roots=Roots()).verify("vsock://1:9")
    assert (UNCHECKED, "unreachable") == (verdict.status, verdict.code)


@pytest.mark.parametrize(("text", "found"), [
    ("vsock://3:8443", "vsock://3:8443"), ("VSOCK://3:8443/v1/", "vsock://3:8443"), ("vsock://2:1/", "vsock://2:1"),
    ("vsock://4294967294:4294967294", "vsock://4294967294:4294967294"),
    ("vsock://3", None), ("vsock://0:1", None), ("vsock://3:0", None), ("vsock://4294967295:1", None),
    ("vsock://3:4294967295", None), ("vsock://03:1", None), ("vsock://+3:1", None), ("vsock://3:1/v2", None),
    ("vsock://3:1?x", None), ("vsock://u@3:1", None), ("vsock://a.example:1", None), ("vsock://\u0663:1", None),
    ("vsock://[::1]:1", None), ("vsock://99999999999:1", None), ("vsock://3:1\n", None), ("vsock://", None),
])
def test_vsock_urls(text: str, found: str | None) -> None:
    """A context identifier and a port, both 32 bits, in decimal, and in one spelling."""
    assert target.is_url(text)
    if found is None:
        with pytest.raises(PolicyError, match="CID:PORT"):
            target.endpoint(text)
    else:
        endpoint = target.endpoint(text)
        assert (found, True, True) == (str(endpoint), endpoint.tls, endpoint.vsock)
        assert found.removeprefix("vsock://") == endpoint.authority
