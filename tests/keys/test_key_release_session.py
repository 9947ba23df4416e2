"""Evidence for a key broker is of the very connection: somebody in between passes it on in vain, with whatever key.

The attacker has the broker's own TLS key, or a certificate of theirs under the pinned root. They end the appliance's
connection, and ask the genuine broker over another one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
from appliance.attestation.evidence import Evidence
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.errors import ModelKeyError
from appliance.keys import policy_keys
from appliance.policy import Loaded, load
from appliance.tls import RELEASE_LABEL, TlsStream, client_context, server_context
from tests.keys.test_key_release import (
    BUILD,
    KEY,
    RULE,
    SELF_TEST,
    attestor,
    key_at,
    log_of,
    refused,
    released,
    write_broker,
)
from tests.support.brokers import HOST, Authority, answer, policy_of, read_request, reference

CHALLENGE = {"nonce": base64.b64encode(bytes(32)).decode(), "extra-params": ""}


@contextlib.contextmanager
def listening(authority: Authority, serve: Callable[[TlsStream], None]) -> Iterator[str]:
    """A server with the certificates of an authority, whose connections go to `serve` after the handshake; its URL."""
    context = server_context(load_pem_private_key(authority.private_key(), None),  # type: ignore[arg-type]
                             load_pem_x509_certificates(authority.chain()))
    listener = socket.create_server((HOST, 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.settimeout(20)
                stream = TlsStream(connection, context, server=True)
                serve(stream)
                stream.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"https://{HOST}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=30)


@contextlib.contextmanager
def relay(authority: Authority, port: int) -> Iterator[tuple[str, list[bytes]]]:
    """An attacker in between, and the requests that they saw; they ask the broker over one kept connection."""
    upstream = TlsStream(socket.create_connection((HOST, port), 20), client_context())
    seen: list[bytes] = []

    def serve(stream: TlsStream) -> None:
        while request := read_request(stream):  # type: ignore[arg-type]
            seen.append(request)
            upstream.sendall(request)
            stream.sendall(read_request(upstream))  # type: ignore[arg-type]  # an answer is framed as a request is

    try:
        with listening(authority, serve) as url:
            yield url, seen
    finally:
        upstream.close()


def key_of(loaded: Loaded, url: str) -> Any:
    """The policy's key, at another place."""
    key, = policy_keys.keys_of(loaded.policy).values()
    assert key.broker is not None
    return key.model_copy(update={"broker": key.broker.model_copy(update={"url": url})})


@pytest.mark.parametrize("attacker", [Authority(), Authority("mallory")], ids=["the broker's key", "another key"])
def test_a_relay(tmp_path: Path, attacker: Authority) -> None:
    """Whether they hold the broker's key or one of their own that the policy's pin covers: no key."""
    with reference(write_broker(tmp_path)) as broker, relay(attacker, broker.server_address[1]) as (url, seen):
        error = refused({"model demo": key_at(url, attacker.pin)})
        assert ("key-denied", True) == (error.code, "of another connection (session)" in error.summary), error.summary
        line = log_of(tmp_path)[-1]
        assert ("refused", "session") == (line["event"], line["code"])
        assert [b"/kbs/v0/auth", b"/kbs/v0/attest"] == [request.split()[1] for request in seen]
        assert {"model demo": KEY} == released({"model demo": key_at(broker.url, Authority().pin)})


class Saying(ReleaseAttestor):
    """An attestor that is told another connection than the one that there is."""

    def __init__(self, change: Callable[[BrokerSession], BrokerSession | None]) -> None:
        loaded = load(Path(__file__).parents[2] / "examples/demo.hcl")
        super().__init__(SimulatedProvider(loaded.host_data), loaded.digest, SELF_TEST, BUILD)
        object.__setattr__(self, "change", change)

    def attest(self, nonce: bytes, release_spki_sha256: bytes, session: BrokerSession | None = None) -> Evidence:
        """Evidence of the other connection, or of none."""
        assert session is not None
        return super().attest(nonce, release_spki_sha256, self.change(session))  # type: ignore[attr-defined]


def test_what_evidence_says_of_the_connection(tmp_path: Path) -> None:
    """None, another one's exporter, another key of the broker: no key."""
    cases: list[tuple[Callable[[BrokerSession], BrokerSession | None], str]] = [
        (lambda _: None, "session: not checked"),
        (lambda here: BrokerSession(here.spki_sha256, bytes(32)), "session: the evidence is of another connection"),
        (lambda here: BrokerSession(bytes(32), here.exporter), "session: the evidence is of another connection")]
    with reference(write_broker(tmp_path)) as broker:
        keys = {"model demo": key_at(broker.url, Authority().pin)}
        for change, reason in cases:
            assert "key-denied" == refused(keys, Saying(change)).code
            assert reason in log_of(tmp_path)[-1]["reason"]
        assert {"model demo": KEY} == released(keys, Saying(lambda here: here))


@pytest.mark.parametrize(("schema", "binding"), [(1, ""), (2, "key")])
def test_what_remains_where_evidence_is_of_a_key(tmp_path: Path, schema: int, binding: str) -> None:
    """Under schema 1, and where the policy says so, the statement is that of version 1, which every broker knows.
    Somebody in between can pass it on, and has a key that is encrypted to the appliance."""
    config = write_broker(tmp_path)
    loaded = policy_of(tmp_path, binding, schema)
    with reference(config) as broker, relay(Authority(), broker.server_address[1]) as (url, seen):
        for place in (broker.url, url):
            assert {"model demo": KEY} == released({"model demo": key_of(loaded, place)}, attestor(loaded))
    assert all(KEY not in request and KEY.hex().encode() not in request for request in seen)
    evidence = json.loads(seen[1].partition(b"\r\n\r\n")[2])["tee-evidence"]["primary_evidence"]
    assert "appliance/key-release/v1" == evidence["statement"]["type"]


@pytest.mark.parametrize("binding", ["", "required"])
def test_the_policy_alone_decides(tmp_path: Path, binding: str) -> None:
    """By a policy of schema 2 no broker gets the older statement, and no key is had by it, whoever asks."""
    config = write_broker(tmp_path)
    loaded = policy_of(tmp_path, binding)
    with reference(config) as broker:
        key = key_of(loaded, broker.url)
        older = key.model_copy(update={"broker": key.broker.model_copy(update={"session_binding": "key"})})
        assert "key-denied" == refused({"model demo": older}, attestor(loaded)).code
        assert "session: not checked" in log_of(tmp_path)[-1]["reason"]
        assert {"model demo": KEY} == released({"model demo": key}, attestor(loaded))


def test_a_rule_for_a_policy_that_names_another_resource(tmp_path: Path) -> None:
    """What the policy says of one resource counts for no other: the rule's own must be bound."""
    config = write_broker(tmp_path, RULE.replace("key/demo", "key/other"))
    loaded = policy_of(tmp_path, "key")
    with reference(config) as broker:
        key = key_of(loaded, broker.url)
        other = key.model_copy(update={"broker": key.broker.model_copy(update={"resource": "default/key/other"})})
        assert "key-denied" == refused({"model demo": other}, attestor(loaded)).code
    assert "session: not checked" in log_of(tmp_path)[-1]["reason"]


@pytest.mark.parametrize("says_so", [True, False])
def test_a_broker_that_hangs_up_after_its_challenge(says_so: bool) -> None:
    """One that says so is asked on another connection, and the evidence is of that; one that does not gets none."""
    attested: list[tuple[str, str]] = []

    def serve(stream: TlsStream) -> None:
        request = read_request(stream)  # type: ignore[arg-type]
        if b"/kbs/v0/auth" in request:
            extra = "connection: close\r\n" if says_so else ""
            stream.sendall(answer(200, json.dumps(CHALLENGE).encode(), extra=extra))
        elif request:
            evidence = json.loads(request.partition(b"\r\n\r\n")[2])["tee-evidence"]["primary_evidence"]
            attested.append((evidence["statement"]["session"],
                             stream.session.exporter(bytes(32), RELEASE_LABEL).hex()))
            stream.sendall(answer(401, b"{}"))

    with listening(Authority(), serve) as url:
        error = refused({"model demo": key_at(url, Authority().pin)})
    assert [True] * says_so == [said == here for said, here in attested]
    assert ("key-denied" if says_so else "key-broker-unreachable") == error.code, error.summary


def test_an_older_broker_is_told_of(tmp_path: Path) -> None:
    """A broker that does not know the statement refuses; the appliance sends no lesser one, and says what to do."""
    asked: list[str] = []

    def serve(stream: TlsStream) -> None:
        while request := read_request(stream):  # type: ignore[arg-type]
            asked.append(request.split()[1].decode())
            first = asked[-1].endswith("auth")
            stream.sendall(answer(200, json.dumps(CHALLENGE).encode()) if first else answer(
                401, b'{"detail": "malformed attestation: statement: type is missing or unknown"}'))

    with listening(Authority(), serve) as url, pytest.raises(ModelKeyError) as caught:
        released({"model demo": key_at(url, Authority().pin)})
    assert ["/kbs/v0/auth", "/kbs/v0/attest"] == asked
    assert ("key-denied", True) == (caught.value.code, "type is missing or unknown" in caught.value.summary)
    assert "key-release/v2" in (caught.value.hint or "")
