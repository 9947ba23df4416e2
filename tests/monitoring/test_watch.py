"""`appliance watch`: against services that are there, that change, and that are gone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import Verifier
from appliance.client.reference import Reference
from appliance.errors import PolicyError
from appliance.monitoring.watching import Watch
from appliance.policy import load
from tests.client.test_client_verify import _crl
from tests.support import waiting
from tests.support.fake_amd import FakeAmd
from tests.support.server import Server, write_policy

GONE = "http://127.0.0.1:9"  # discard: nothing listens there


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A simulated appliance."""
    server = Server(write_policy(tmp_path_factory.mktemp("watch"), {"tiny": tiny_model}), [tiny_model])
    yield server.wait_ready()
    server.stop()


def _read(text: str) -> dict[tuple[str, ...], float]:
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.name.removeprefix("appliance_watch_"), *map(each.labels.__getitem__, sorted(each.labels))): each.value
            for each in samples}


def test_once_ends_by_the_first_verdict_that_will_not_do(running: Server, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """0 where all will do, else the exit code of `appliance verify`; and the file says the same."""
    file = tmp_path / "appliance.prom"
    words = ["watch", "--policy", str(running.policy), "--once", "--json", "--textfile", str(file)]
    assert 5 == main([*words, running.url])  # simulated, which nobody accepted
    assert 0 == main([*words, running.url, "--accept", "simulated"])
    assert 2 == main([*words, running.url, GONE, "--accept", "simulated"])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("simulated", False), ("simulated", True), ("simulated", True), ("could not check", False)] == [
        (each["verdict"], each["good"]) for each in said]
    found = _read(file.read_text())
    assert (1, 0) == (found["verified", running.url], found["verified", GONE])
    assert ("verified_timestamp_seconds", GONE) not in found
    assert 1 == found["verdict", "unreachable", GONE, "could not check"]


def test_another_policy_is_seen(running: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An appliance that runs another policy than expected ends it with 3."""
    other = tmp_path / "other.hcl"
    other.write_text(running.policy.read_text().replace('name   = "test"', 'name   = "else"'))
    assert 3 == main(["watch", "--policy", str(other), "--once", running.url, "--accept", "simulated"])
    assert "POLICY NOT MET" in capsys.readouterr().out


def test_it_listens_and_tells_of_changes_alone(tmp_path: Path, tiny_model: Path) -> None:
    """Rounds follow each other; a verdict is printed when it changes, and the age of the last good one stays."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model]).wait_ready()
    watch = subprocess.Popen(
        [sys.executable, "-m", "appliance", "watch", server.url, "--policy", str(server.policy), "--accept",
         "simulated", "--every", "1", "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    try:
        ready, good = json.loads(watch.stdout.readline()), json.loads(watch.stdout.readline())
        assert ("ready", True) == (ready["event"], good["good"])

        def metrics() -> dict[tuple[str, ...], float]:
            return _read(httpx.get(ready["listening"], timeout=60, trust_env=False).raise_for_status().text)

        first = metrics()
        assert first["checked_timestamp_seconds", server.url] == first["verified_timestamp_seconds", server.url]
        server.stop()
        assert not json.loads(watch.stdout.readline())["good"]  # the next line is the change
        waiting.until(lambda: metrics()["verified", server.url] == 0, "round after the end")
        last = metrics()
        assert last["checked_timestamp_seconds", server.url] > last["verified_timestamp_seconds", server.url]
        assert last["verified_timestamp_seconds", server.url] >= first["verified_timestamp_seconds", server.url]
    finally:
        watch.send_signal(signal.SIGTERM)
        assert 143 == watch.wait(60)
        watch.stdout.close()


def test_files_are_read_anew_and_one_that_is_lost_is_no_verdict(running: Server) -> None:
    """A round whose policy cannot be read checks nothing and says so; the next one may be good again."""
    verifiers = iter([PolicyError("policy: gone", code="file-absent"), Verifier.from_files(running.policy)])

    def make() -> Verifier:
        found = next(verifiers)
        if isinstance(found, PolicyError):
            raise found
        return found

    watch = Watch([running.url], make, ("simulated",))
    assert [(("could not check", "file-absent"), True)] == [(each.word, new) for each, new in watch.look()]
    assert 2 == watch.exit_code
    assert [(("simulated", ""), True)] == [(each.word, new) for each, new in watch.look()]
    assert 0 == watch.exit_code


def test_the_end_of_collateral_is_that_of_the_first_that_ends(running: Server) -> None:
    """A list of revoked certificates says when its next one is due; a document of Intel's as well."""
    collateral = _crl(FakeAmd("Genoa"))
    due = min(each.next_update_utc for each in collateral.crls if each.next_update_utc)
    sooner = (due - timedelta(hours=1)).astimezone(UTC).replace(microsecond=0)
    assert due == _end(running, collateral)
    collateral.documents.append({"tcbInfo": {"nextUpdate": f"{sooner:%Y-%m-%dT%H:%M:%SZ}"}})
    assert sooner == _end(running, collateral)


def _end(running: Server, collateral: Collateral) -> datetime:
    watch = Watch([GONE], lambda: Verifier(Reference(load(running.policy), collateral=collateral)))
    list(watch.look())
    return datetime.fromtimestamp(_read(watch.text().decode())["collateral_end_timestamp_seconds",], UTC)
