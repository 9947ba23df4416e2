"""Brokers that a team runs: two behind one address, rules that change while they run, rules that end, and their audit
log, which the auditor's own command judges."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation.case.machine import Custody, MachineId, MachineList
from appliance.attestation.case.terms import EkRoots
from appliance.cli.main import main
from examples.broker import __main__ as command
from examples.broker import challenges
from examples.broker.challenges import Challenges
from examples.broker.config import read
from examples.broker.rules import ConfigError, Rules
from examples.broker.server import _RefusedError
from tests.project.test_key_broker import CONFIG, KEY, NOW, OTHER_IMAGE, Deployment, Snp, measurements
from tests.support import brokers
from tests.support.fake_amd import PATCHED_TCB, FakeAmd

SECRET = bytes(range(50, 82))


def test_brokers_of_one_secret_take_each_others_challenges() -> None:
    """Each once. A broker of another secret, or of none, takes none of them."""
    first, second = Challenges(SECRET), Challenges(SECRET)
    for _ in range(20):
        cookie, nonce = first.make("tdx", None)
        assert ("tdx", nonce, None) == dataclasses.astuple(second.take(cookie))
        assert second.take(cookie) is None
    assert first.take(cookie) is not None
    assert first.take(cookie) is None
    assert Challenges().take(cookie) is Challenges(bytes(32)).take(cookie) is None
    assert second.take(Challenges().make("tdx", None)[0]) is None


def test_a_broker_meets_the_challenges_of_another_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps, the newest first, and all of them again: each is taken once; those that the ring has no bit for, never."""
    monkeypatch.setattr(challenges, "RING", 64)
    first, second = Challenges(SECRET), Challenges(SECRET)
    made = [first.make("tdx", None)[0] for _ in range(200)]
    for number in (3, 60, 30, 10, 63):
        assert second.take(made[number]) is not None
        assert second.take(made[number]) is None
    assert second.take(made[199]) is not None
    assert all(second.take(each) is None for each in made[:136])
    assert all(second.take(each) is not None for each in reversed(made[136:199]))
    assert all(second.take(each) is None for each in made)


def test_time_bounds_a_challenge_of_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose broker's clock is ahead by more than ten seconds is not taken, and an old one is not."""
    first, second = Challenges(SECRET), Challenges(SECRET)
    for seconds, taken in ((60, True), (69, True), (75, False), (-1, False)):
        monkeypatch.setattr(challenges, "SECONDS", seconds)
        cookie, _ = first.make("tdx", None)
        monkeypatch.setattr(challenges, "SECONDS", 60)
        assert taken is (second.take(cookie) is not None), seconds


def test_starts_of_brokers_fill_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More brokers than there are rings for are refused until a minute has passed; a broker's own are always taken."""
    monkeypatch.setattr(challenges, "MAX_MAKERS", 4)
    here = Challenges(SECRET)
    others = [Challenges(SECRET).make("tdx", None)[0] for _ in range(5)]
    assert [True, True, True, False, False] == [here.take(each) is not None for each in others]
    assert here.take(here.make("tdx", None)[0]) is not None
    late = challenges.time.time() + 120
    monkeypatch.setattr(challenges.time, "time", lambda: late)
    assert here.take(Challenges(SECRET).make("tdx", None)[0]) is not None
    assert 2 == len(here._rings)


AMD = FakeAmd("Genoa", tcb=PATCHED_TCB)


def _split(deployment: Deployment, asked: Any, attested: Any) -> bytes:
    """The key, where one broker makes the challenge and the other takes it."""
    class Both:
        challenge, attest, resource = asked.challenge, attested.attest, attested.resource

    return deployment.ask(Both, Snp(deployment.policy.digest, AMD), "snp")  # type: ignore[arg-type]


def test_two_brokers_behind_one_address(tmp_path: Path) -> None:
    """A challenge of one is answered at the other, which releases the key. Without the secret it is not taken."""
    deployment = Deployment(tmp_path)
    with pytest.raises(_RefusedError, match="no session with a nonce"):
        _split(deployment, deployment.broker(AMD), deployment.broker(AMD))
    (tmp_path / "shared.key").touch(0o600)
    (tmp_path / "shared.key").write_text(SECRET.hex())
    (tmp_path / "broker.toml").write_text(f'shared_secret = "shared.key"\n{CONFIG}')
    first, second = deployment.broker(AMD), deployment.broker(AMD)
    assert KEY == _split(deployment, first, second)
    assert KEY == _split(deployment, second, first)


def _serving(folder: Path) -> Deployment:
    deployment = Deployment(folder, config=f"port = 0\n{CONFIG}")
    deployment.broker()  # its collateral
    return deployment


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "broker.jsonl").read_text().splitlines()]


def test_rules_are_exchanged_while_it_runs(tmp_path: Path) -> None:
    """All of a file or nothing: a bad one, or another address, keeps the rules, and the log says so. A session that was
    attested before is decided by the new rules."""
    deployment = _serving(tmp_path)
    config = tmp_path / "broker.toml"
    good = config.read_text()
    with brokers.reference(config) as server:
        before = server.broker._rules
        for text, words in (("x = [", "broker.toml: "),
                            (good.replace("version = 4", "version = 0"), "a version from 1"),
                            (good.replace("port = 0", "port = 1"), "port is another one"),
                            (good.replace('"broker.jsonl"', '"other.jsonl"'), "log is another one")):
            config.write_text(text)
            assert not server.reload(lambda: read(config))
            assert server.broker._rules is before
            assert ("rules-refused", True) == (_events(tmp_path)[-1]["event"], words in _events(tmp_path)[-1]["reason"])
        config.write_text(good.replace("acme/production/model", "acme/other/model"))
        assert server.reload(lambda: read(config))
        assert ["acme/other/model"] == [rule.resource for rule in server.broker._rules.rules]
        assert server.broker._rules.sha256.hex() == _events(tmp_path)[-1]["sha256"] != before.sha256.hex()
    broker = deployment.broker()
    config.write_text(good)
    with pytest.raises(_RefusedError):
        deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    broker.take(dataclasses.replace(read(config, broker._rules.roots), now=broker._rules.now))
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")


def test_a_certificate_is_renewed_while_it_runs(tmp_path: Path) -> None:
    """New connections see the new one; a private key of another one changes nothing."""
    _serving(tmp_path)
    config = tmp_path / "broker.toml"
    with brokers.reference(config) as server:
        before = server.spki_sha256
        brokers.Authority("two").write(tmp_path)
        (tmp_path / "server.key").write_bytes(brokers.Authority("one").private_key())
        assert not server.reload(lambda: read(config))
        assert before == server.spki_sha256
        brokers.Authority("two").write(tmp_path)
        assert server.reload(lambda: read(config))
        assert before != server.spki_sha256


def test_of_two_reloads_at_once_the_later_one_reads_last(tmp_path: Path) -> None:
    """What the first one read slowly does not come into force after what the second one read."""
    _serving(tmp_path)
    config, begun, go_on, read_by = tmp_path / "broker.toml", threading.Event(), threading.Event(), list[str]()

    def slowly() -> Rules:
        found = read(config)
        begun.set()
        go_on.wait(1)
        read_by.append("first")
        return found

    def other() -> Rules:
        read_by.append("second")
        go_on.set()
        return read(config)

    with brokers.reference(config) as server:
        threads = [threading.Thread(target=server.reload, args=(each,)) for each in (slowly, other)]
        threads[0].start()
        assert begun.wait(30)
        config.write_text(config.read_text().replace("acme/production/model", "acme/other/model"))
        threads[1].start()
        for thread in threads:
            thread.join()
        assert ["first", "second"] == read_by
        assert ["acme/other/model"] == [rule.resource for rule in server.broker._rules.rules]


def test_a_rule_ends_at_its_time(tmp_path: Path) -> None:
    """To the second; the log says when it ended. A time without an offset does not start."""
    deployment = Deployment(tmp_path)
    for until, given in ((NOW + timedelta(seconds=1), True), (NOW, False), (NOW - timedelta(days=1), False)):
        (tmp_path / "broker.toml").write_text(f"{CONFIG}until = {until.isoformat()}\n")
        broker = deployment.broker()
        if given:
            assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
            continue
        with pytest.raises(_RefusedError):
            deployment.ask(broker, Snp(deployment.policy.digest), "snp")
        assert "the rule ended at " in deployment.reason()
    (tmp_path / "broker.toml").write_text(f"{CONFIG}until = 2026-12-24T18:00:00\n")
    with pytest.raises(ConfigError, match="until has no offset"):
        deployment.broker()


def _overlap(folder: Path, *words: str) -> int:
    return command.main(["overlap", str(folder / "broker.toml"), *words])


def test_two_images_overlap_for_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image of today until a time, the next one from now on; comments and all other lines stay."""
    commented = CONFIG.replace("version = 4", "version = 4 # of the model's key")
    deployment = Deployment(tmp_path, config=commented)
    text = measurements().decode().replace("21" * 48, OTHER_IMAGE.hex())
    (tmp_path / "next").mkdir()
    (tmp_path / "next/measurements.json").write_text(text)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=7)
    assert 0 == _overlap(tmp_path, "--until", until.isoformat(), "--measurements",
                         str(tmp_path / "next/measurements.json"))
    assert f"1 rules end at {until:%Y-%m-%dT%H:%M:%SZ}" in capsys.readouterr().out
    after = (tmp_path / "broker.toml").read_text()
    assert 2 == after.count("version = 4 # of the model's key")
    assert [until, None] == [rule.until for rule in read(tmp_path / "broker.toml").rules]
    digest = deployment.policy.digest
    broker = deployment.broker(AMD)
    for images in ((True, True), (False, True)):
        if not images[0]:
            broker.take(dataclasses.replace(broker._rules, now=lambda: NOW, rules=tuple(
                dataclasses.replace(rule, until=rule.until and NOW) for rule in broker._rules.rules)))
        for given, fields in zip(images, ({}, {"measurement": OTHER_IMAGE}), strict=True):
            if given:
                assert KEY == deployment.ask(broker, Snp(digest, AMD, fields), "snp")
            else:
                with pytest.raises(_RefusedError):
                    deployment.ask(broker, Snp(digest, AMD, fields), "snp")
                assert "the rule ended at " in deployment.reason()
    assert 0 == command.main(["check", str(tmp_path / "broker.toml")])
    assert 2 == capsys.readouterr().out.count("acme/production/model version 4: policy ")


@pytest.mark.parametrize(("words", "reason"), [
    (["--until", "2020-01-01T00:00:00Z", "--policy", "deployment.hcl"], "a time to come"),
    (["--until", "2999-01-01T00:00:00", "--policy", "deployment.hcl"], "a time to come"),
    (["--until", "2999-01-01T00:00:00Z"], "nothing follows"),
    (["--until", "2999-01-01T00:00:00Z", "--policy", "none.hcl"], "none.hcl"),
    (["--until", "2999-01-01T00:00:00Z", "--policy", "deployment.hcl", "--resource", "x"], "the name 'x'"),
])
def test_an_overlap_that_no_broker_takes_leaves_the_file(tmp_path: Path, words: list[str], reason: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """It is as it was, byte for byte, and nothing else is left in the folder."""
    Deployment(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert 2 == _overlap(tmp_path, *words)
    assert reason in capsys.readouterr().err
    assert CONFIG == (tmp_path / "broker.toml").read_text()
    assert before == sorted(tmp_path.iterdir())


def _audited(folder: Path) -> tuple[Deployment, str]:
    """A deployment whose broker has an audit log, and the log's key in hex."""
    key = Ed25519PrivateKey.generate()
    (folder / "audit.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return (Deployment(folder, config=f'audit = "audit.jsonl"\naudit_key = "audit.pem"\n{CONFIG}'),
            key.public_key().public_bytes_raw().hex())


def _records(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    return [each for each in found if each["event"] not in ("audit.checkpoint", "log.opened", "audit.closed")]


def test_decisions_are_in_an_audit_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over two starts: what was released and denied, to whom and why, and refusals as counts. `appliance audit verify`
    finds it whole by the broker's key, and finds a changed record."""
    deployment, key = _audited(tmp_path)
    digest, broker = deployment.policy.digest, deployment.broker()
    assert KEY == deployment.ask(broker, Snp(digest), "snp")
    for fields, resource in (({"measurement": OTHER_IMAGE, "vmpl": 1}, "acme/production/model"),
                             ({}, "text of a peer")):
        with pytest.raises(_RefusedError):
            deployment.ask(broker, Snp(digest, fields=fields), "snp", resource=resource)
    broker._refuse("session", "of another connection")
    broker.take(broker._rules)
    broker.keep(ConfigError("not in form"))
    broker.close()
    deployment.broker().close()
    found = _records(tmp_path)
    assert ["rules.loaded", "release.granted", "release.denied", "release.denied", "releases.counted", "rules.loaded",
            "rules.refused", "rules.loaded"] == [each["event"] for each in found]
    granted, denied, unknown, counted = found[1:5]
    assert ("acme/production/model", 4, "sev-snp", digest.hex()) == tuple(
        granted[name] for name in ("resource", "key_version", "platform", "policy_sha384"))
    assert {"measurement": 1, "vmpl": 1} == denied["failed"]
    assert not {"resource", "failed"} & set(unknown)
    assert {"session": 1} == counted["refused"]
    assert "text of a peer" not in (tmp_path / "audit.jsonl").read_text()
    log = tmp_path / "audit.jsonl"
    assert 0 == main(["audit", "verify", str(log), "--key", key])
    said = capsys.readouterr().out
    last = len(log.read_text().splitlines()) - 1
    assert f"complete and unaltered up to record {last - 1}" in said
    assert "2 boots" in said
    log.write_text(log.read_text().replace('"vmpl":1', '"vmpk":1'))
    assert 1 == main(["audit", "verify", str(log), "--key", key])


def test_nothing_is_released_that_cannot_be_recorded(tmp_path: Path) -> None:
    """A disk that fails ends releases; the asker gets 503."""
    deployment, _ = _audited(tmp_path)
    broker = deployment.broker()
    assert KEY == deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert broker._records is not None
    broker._records._log._out.fail("no space left on device")
    with pytest.raises(_RefusedError) as caught:
        deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    assert (503, True) == (caught.value.status, "no space left" in deployment.reason())


def test_an_altered_audit_log_stops_the_start(tmp_path: Path) -> None:
    """And names that the audit log cannot have do."""
    deployment, _ = _audited(tmp_path)
    broker = deployment.broker()
    deployment.ask(broker, Snp(deployment.policy.digest), "snp")
    broker.close()
    log = tmp_path / "audit.jsonl"
    log.write_text(log.read_text().replace('"key_version":4', '"key_version":5'))
    with pytest.raises(Exception, match="does not follow the one before it"):
        deployment.broker()
    config = tmp_path / "broker.toml"
    config.write_text(config.read_text().replace("acme/production/model", "a" * 97))
    with pytest.raises(ConfigError, match="so the audit log cannot have it"):
        deployment.broker()


def test_the_cookie_has_no_more_than_the_protocol_allows() -> None:
    """At most 256 characters, of those that the appliance takes."""
    cookie, nonce = Challenges(SECRET).make("simulated", None)
    assert len(cookie) <= 256
    assert nonce in base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_")


def test_makers_and_machines_are_in_the_digest(tmp_path: Path) -> None:
    """Brokers that trust other makers of TPMs, or list other machines, do not decide alike."""
    rules = _serving(tmp_path).broker()._rules
    rule = rules.rules[0]
    machine = MachineId("sev-snp", bytes(64))
    changed = [rule, *(dataclasses.replace(rule, ek_roots=EkRoots({pin: "maker"}, ())) for pin in ("aa", "bb")),
               *(dataclasses.replace(rule, machines=MachineList(version, {machine: Custody(note)}))
                 for version, note in ((1, "here"), (2, "here"), (2, "there")))]
    assert 6 == len({dataclasses.replace(rules, rules=(each,)).sha256 for each in changed})
