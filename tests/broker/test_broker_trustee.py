"""Keys that Trustee keeps: the broker asks by the published protocol, of a server that was written from it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ModelKeyError
from appliance.keys.release.https import Connection, Destination
from appliance.keys.release.kbs import Handshake
from examples.broker.keepers.trustee import report_data
from examples.broker.rules import ConfigError
from examples.broker.server import _RefusedError
from tests.project.test_key_broker import CONFIG, KEY, Deployment, Snp
from tests.support import trustee
from tests.support.brokers import Authority
from tests.support.fake_intel import FakeIntel

DOCUMENT = b"appliance/key/v1\nversion %d\nkey %s\n"
NAME = "acme/production/model"


class Kept:
    """A KBS over TLS with the key, an agent, and a broker's folder that names both."""

    def __init__(self, folder: Path, kbs: trustee.Kbs, agent: trustee.Agent) -> None:
        self.folder, self.kbs, self.agent = folder, kbs, agent
        head, release, rules = CONFIG.partition("[[release]]")
        keeper = (f'[keeper.coco]\nkind = "kbs"\nurl = "https://127.0.0.1:{kbs.port}"\nca = "kbs-ca.pem"\n'
                  f'agent = "http://127.0.0.1:{agent.port}"\n')
        self.deployment = Deployment(folder, config=f"{head}{keeper}{release}{rules}".replace(
            'key_file = "model.key"', 'kept_by = "coco"'))
        (folder / "model.key").unlink()
        kbs.resources[NAME] = DOCUMENT % (4, KEY.hex().encode())

    def change(self, old: str, new: str) -> None:
        """Edit the broker's configuration."""
        config = self.folder / "broker.toml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    def released(self) -> bytes:
        """The key that an attested appliance gets."""
        return self.deployment.ask(self.deployment.broker(), Snp(self.deployment.policy.digest), "snp")

    def refused(self) -> str:
        """What the broker says instead of starting."""
        with pytest.raises(ConfigError) as caught:
            self.deployment.broker()
        return str(caught.value)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Both servers, running."""
    (tmp_path / "kbs").mkdir()
    authority, kbs, agent = Authority("kbs"), trustee.Kbs(), trustee.Agent()
    authority.write(tmp_path / "kbs")
    (tmp_path / "kbs-ca.pem").write_bytes(authority.chain().split(b"-----END CERTIFICATE-----\n")[1]
                                          + b"-----END CERTIFICATE-----\n")
    with trustee.running(kbs, tmp_path / "kbs"), trustee.running(agent):
        yield Kept(tmp_path, kbs, agent)


def test_a_key_that_trustee_keeps(kept: Kept) -> None:
    """It is released; the broker has no file of it, and attests anew for each release with another key."""
    assert KEY == kept.released()
    first = ["/kbs/v0/auth", "/kbs/v0/attest", f"/kbs/v0/resource/{NAME}"]
    assert 2 * first == kept.kbs.asked  # at the start, and for the release
    assert 2 == len({each["key"]["x"] for each in kept.kbs.sessions.values()})
    assert 2 * ["/info", "/aa/evidence"] == kept.agent.asked


def test_evidence_of_a_td(kept: Kept) -> None:
    """A quote binds the 48 bytes, and zeros behind them. An event log beside it is longer than other answers may be."""
    fake = FakeIntel()
    kept.agent.tee, kept.agent.collect = "tdx", lambda data: {
        "cc_eventlog": 200_000 * "A", "quote": base64.b64encode(fake.quote(report_data=data.ljust(64, b"\0"))).decode()}
    assert KEY == kept.released()
    assert {"tdx"} == {each["tee"] for each in kept.kbs.sessions.values()}


def test_a_bare_key_under_another_name(kept: Kept) -> None:
    """A resource may be a key without a version, and need not have the name that policies have."""
    kept.kbs.resources = {"default/llm/one": KEY.hex().encode()}
    kept.change('kept_by = "coco"', 'kept_by = "coco"\nkept_as = "default/llm/one"')
    assert KEY == kept.released()


def test_trustee_ends_releases(kept: Kept) -> None:
    """A resource policy that no longer holds: the asker gets 503, and the broker's log says why."""
    broker = kept.deployment.broker()
    kept.kbs.allowed.clear()
    with pytest.raises(_RefusedError) as caught:
        kept.deployment.ask(broker, Snp(kept.deployment.policy.digest), "snp")
    assert 503 == caught.value.status
    assert "Access denied by policy" not in caught.value.detail
    assert "refuses to release acme/production/model: Access denied by policy" in kept.deployment.reason()
    assert "the resource policy must release the key" in kept.deployment.reason()


def test_a_key_by_the_data_hub_of_a_pod(kept: Kept) -> None:
    """It attests by itself, so the broker needs neither the KBS's address nor evidence."""
    text = (kept.folder / "broker.toml").read_text()
    hub = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("url", "ca ")))
    (kept.folder / "broker.toml").write_text(hub.replace('kind = "kbs"', 'kind = "cdh"'))
    assert "HTTP status 500 for /cdh/resource/acme/production/model: " in kept.refused()
    kept.agent.resources[NAME] = DOCUMENT % (4, KEY.hex().encode())
    kept.agent.asked.clear()
    assert KEY == kept.released()
    assert (2 * [f"/cdh/resource/{NAME}"], []) == (kept.agent.asked, kept.kbs.asked)


def _set(name: str, value: Any) -> Callable[[Kept], None]:
    return lambda kept: setattr(kept.kbs, name, value)


def _agent(name: str, value: Any) -> Callable[[Kept], None]:
    return lambda kept: setattr(kept.agent, name, value)


WRONG: list[tuple[str, Callable[[Kept], None], str]] = [
    ("another version of the protocol", _set("version", "0.5.0"), "Version Mismatch: expect =0.5.0"),
    ("evidence over zeros", _agent("collect", lambda data: trustee.sample(bytes(48))), "verify TEE evidence failed"),
    ("evidence that is cut", _agent("collect", lambda data: trustee.sample(data[:32])), "verify TEE evidence failed"),
    ("evidence of another platform", _agent("tee", "tdx"), "verify TEE evidence failed"),
    ("evidence that is no object", _agent("collect", lambda data: [1]), "/aa/evidence is not a JSON object"),
    ("evidence without an end", _agent("collect", lambda data: {"svn": 2_000_000 * "1"}), "more than 1048576 bytes"),
    ("an agent without a platform", _agent("tee", None), "/info names no platform"),
    ("a platform that is no name", _agent("tee", "tdx\n"), "/info names no platform"),
    ("no such resource", _set("resources", {}), "compare kept_as with the resources of the KBS"),
    ("another version of the key", _set("resources", {NAME: DOCUMENT % (3, KEY.hex().encode())}),
     "the key has version 3, not 4"),
    ("a resource that is no key", _set("resources", {NAME: b"a password"}), "bytes that are no key"),
    ("a nonce that is too short", _set("nonce_bytes", 8), "challenge nonce has 8 bytes"),
    ("a further member of the JWE", _set("change", lambda jwe: {**jwe, "aad": "AAAA"}), "ECDH-ES+A256KW"),
    ("a JWE that was altered", _set("change", lambda jwe: {**jwe, "tag": "A" * 22}), "or was altered"),
]


@pytest.mark.parametrize(("what", "change", "words"), WRONG, ids=[case[0] for case in WRONG])
def test_a_keeper_that_hands_over_nothing(kept: Kept, what: str, change: Callable[[Kept], None], words: str) -> None:
    """The broker does not start, and says why."""
    change(kept)
    assert words in kept.refused()


def test_a_kbs_of_another_authority_is_not_asked(kept: Kept) -> None:
    """No request goes to a server whose certificate does not lead to `ca`."""
    (kept.folder / "kbs-ca.pem").write_bytes(Authority("stranger").chain())
    assert "lead to `ca`" in kept.refused()
    assert [] == kept.kbs.asked


def test_without_an_agent(kept: Kept) -> None:
    """The error names what has to run beside the broker."""
    kept.change(f"127.0.0.1:{kept.agent.port}", "127.0.0.1:9")
    assert "start api-server-rest" in kept.refused()
    assert [] == kept.kbs.asked


CONFIGS: list[tuple[str, str, str]] = [
    ('kind = "kbs"', 'kind = "as"', "allowed: cdh, kbs"),
    ('ca = "kbs-ca.pem"\n', "", "https:// with `ca`, or http:// to this machine"),
    ('agent = "http://127.0.0.1', 'agent = "http://192.0.2.1', "agent is "),
    ('kept_by = "coco"', 'kept_by = "cocoa"', "there are: coco"),
    ('kept_by = "coco"', 'kept_by = "coco"\nkept_as = "key"', "allowed: REPOSITORY/TYPE/TAG"),
    ('kept_by = "coco"', 'kept_by = "coco"\nkept_as = "a/../b"', "allowed: REPOSITORY/TYPE/TAG"),
    ('kept_by = "coco"', 'kept_by = "coco"\nkey_file = "model.key"', "key_file: not known here"),
]


@pytest.mark.parametrize(("old", "new", "words"), CONFIGS)
def test_configurations_that_cannot_be(kept: Kept, old: str, new: str, words: str) -> None:
    """The error says what is allowed."""
    kept.change(old, new)
    assert words in kept.refused()


def _handshake(kept: Kept) -> Handshake:
    place = Destination.of(f"https://127.0.0.1:{kept.kbs.port}", Authority("kbs").pin)
    return Handshake(Connection(place, time.monotonic() + 10), "sample")


def test_an_appliance_says_what_trustee_understands(kept: Kept) -> None:
    """The handshake that ships, over the connection that ships: with evidence in Trustee's form it gets the key."""
    session = _handshake(kept)
    data = report_data(session.challenge(), session.release_key)
    session.attest(json.dumps(trustee.sample(data)).encode())
    assert DOCUMENT % (4, KEY.hex().encode()) == bytes(session.resource(NAME))


def test_trustee_does_not_take_an_appliances_evidence(kept: Kept) -> None:
    """The form is another, and what it binds: so a broker stands between."""
    session = _handshake(kept)
    session.challenge()
    with pytest.raises(ModelKeyError, match="verify TEE evidence failed"):
        session.attest(b'{"format": "appliance/evidence/v1"}')
