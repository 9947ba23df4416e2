"""Several appliances behind one port, and two references for the time of a change."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.attestation.trust.roots import Roots
from appliance.cli import verifying
from appliance.cli.main import parser_of
from appliance.client import Verifier, target
from appliance.client.exchange import Refusal
from appliance.client.fleet import conversation
from appliance.client.fleet.overlap import Overlap, is_old
from appliance.client.fleet.pool import Fleet
from appliance.client.fleet.renewal import Judge, Renewal
from appliance.client.proxy import Proxy
from appliance.client.verdict import Verdict
from appliance.errors import PolicyError
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.client.test_client_verify import _crl
from tests.support import fake_appliance as fake
from tests.support import waiting
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_appliance import FakeAppliance

AMD = FakeAmd("Genoa")
PLAIN = httpx.Client(trust_env=False, timeout=20)
DONE = b"data: [DONE]\n\n"


def _verifier(path: Path, at: datetime = NOW, **options: Any) -> Verifier:
    return fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=_crl(AMD), at=at, **options)


@contextlib.contextmanager
def _appliances(folder: Path, *names: str) -> Iterator[list[tuple[FakeAppliance, Path]]]:
    """One for each name; each name has a policy of its own, and answers with its place in the list."""
    with contextlib.ExitStack() as closing:
        found = []
        for number, name in enumerate(names):
            minimum = 10 + sorted(set(names)).index(name)
            path = fake.write_policy(folder, "sev-snp", name=f"{name}.hcl",
                                     evidence=f"sev_snp {{\n min_tcb {{ snp = {minimum} }}\n }}")
            policy = load(path)
            server = FakeAppliance(fake.attestor(fake.SnpSource(AMD, host_data(policy.digest)), policy), folder)
            closing.callback(server.stop)
            server.pieces = [b"data: %d\n\n" % number, DONE]
            found.append((server, path))
        yield found


class _Clock:
    """A verifier's clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@contextlib.contextmanager
def _port(make: Callable[[], Judge], servers: list[FakeAppliance], files: tuple[Path, ...] = (),
          ) -> Iterator[tuple[str, Fleet, list[Verdict]]]:
    """The local port of a fleet."""
    told: list[Verdict] = []
    judge = Renewal(make, files, seconds=0.0)
    fleet = Fleet(judge, [target.endpoint(each.url) for each in servers], tell=told.append)
    with contextlib.suppress(Exception):
        fleet.verify()
    fleet.watch(0.05)
    with Proxy(fleet) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield proxy.url, fleet, told
        proxy.shutdown()
        thread.join()
    fleet.close()


def _ask(url: str, *words: str, key: str = "sk-a") -> str:
    """A chat whose turns are words; says which appliance answered."""
    roles = ("user", "assistant")
    body = {"model": "demo", "messages": [{"role": roles[number % 2], "content": word}
                                          for number, word in enumerate(words)]}
    answer = PLAIN.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    return answer.text.split()[1] if answer.status_code == 200 else answer.json()["error"]["code"]


def test_conversations_are_spread_and_stay(tmp_path: Path) -> None:
    """Forty conversations reach each of three machines; later turns of each go where its first went."""
    with _appliances(tmp_path, "a", "a", "a") as found, \
            _port(lambda: _verifier(found[0][1]), [each for each, _ in found]) as (url, _, _):
        first = {word: _ask(url, word) for word in map(str, range(40))}
        assert {"0", "1", "2"} == set(first.values())
        assert first == {word: _ask(url, word, "answer", "more") for word in first}


def test_a_conversation_is_told_by_key_model_and_beginning() -> None:
    """Another caller, model or first question is another conversation; later turns are the same."""
    def of(headers: tuple[tuple[str, str], ...] = (("Authorization", "a"),), **body: Any) -> bytes | None:
        return conversation.key("POST", headers, json.dumps(body).encode())

    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    known = of(model="m", messages=turns)
    assert known is not None
    assert known == of(model="m", messages=[*turns, {"role": "assistant", "content": "x"}], temperature=1)
    others = [of((("Authorization", "b"),), model="m", messages=turns), of(model="n", messages=turns),
              of(model="m", messages=turns[:1]), of(model="m", input="u"), of(model="m", prompt="v"),
              of(model="m", system="s", messages=turns)]
    assert len({known, *others}) == 1 + len(others)
    assert None not in others
    assert [None] * 4 == [conversation.key("GET", (), b"{}"), conversation.key("POST", (), b"["),
                          conversation.key("POST", (), b"[]"), of(model="m")]


def _debug(server: FakeAppliance) -> None:
    source = server.attestor._provider
    assert isinstance(source, fake.SnpSource)
    source.fields = {"policy": 1 << 17 | 1 << 19}
    server.rotate()


def test_what_no_longer_verifies_gets_nothing(tmp_path: Path) -> None:
    """A machine that may be debugged is dropped, its conversations go on elsewhere, and it receives no more prompts."""
    with _appliances(tmp_path, "a", "a") as found, \
            _port(lambda: _verifier(found[0][1]), [each for each, _ in found]) as (url, fleet, _):
        words = [str(each) for each in range(12) if _ask(url, str(each)) == "0"]
        assert words
        _debug(found[0][0])
        fleet.members[0].channel.close()  # as after the life of its verdicts
        before = bytes(found[0][0].received)
        assert {"1"} == {_ask(url, word, "x", "the-canary") for word in words}
        assert b"the-canary" not in bytes(found[0][0].received)[len(before):]
        _debug(found[1][0])
        fleet.members[1].channel.close()
        assert "evidence-debug" == _ask(url, "a", "b", "the-canary")


def test_a_machine_that_ends_is_replaced(tmp_path: Path) -> None:
    """One of two ends while a client asks: SDKs notice nothing."""
    with _appliances(tmp_path, "a", "a") as found, \
            _port(lambda: _verifier(found[0][1]), [each for each, _ in found]) as (url, fleet, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-a", timeout=20)
        found[0][0].stop()
        fleet.members[0].channel.close()
        for number in range(8):
            messages: list[Any] = [{"role": "user", "content": str(number)}]
            raw = client.chat.completions.with_raw_response.create(model="demo", messages=messages, stream=True)
            assert 200 == raw.http_response.status_code
        assert fleet.members[0].lost


def test_a_refusal_as_a_whole_goes_to_the_next(tmp_path: Path) -> None:
    """503 of a machine that drains is asked of the next; of the last it is handed on."""
    with _appliances(tmp_path, "a", "a") as found, \
            _port(lambda: _verifier(found[0][1]), [each for each, _ in found]) as (url, _, _):
        found[0][0].status = (503, "")
        assert {"1"} == {_ask(url, str(each)) for each in range(8)}
        found[1][0].status = (503, "")
        answer = PLAIN.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert 503 == answer.status_code


def test_requests_without_a_conversation_go_to_the_first(tmp_path: Path) -> None:
    """Health, models and the log are of one machine, while it is verified."""
    with _appliances(tmp_path, "a", "a") as found, \
            _port(lambda: _verifier(found[0][1]), [each for each, _ in found]) as (url, _, _):
        for _ in range(4):
            PLAIN.get(f"{url}/v1/models")
        assert (4, 0) == tuple(sum("models" in each for each in server.asked) for server, _ in found)


def _overlap(old: Path, new: Path, clock: _Clock, until: datetime = NOW + timedelta(hours=1)) -> Overlap:
    def made(path: Path) -> Verifier:
        return Verifier(_verifier(path).reference, clock=clock)

    return Overlap(made(old), made(new), until, clock=clock)


def test_either_will_do_until_the_end_of_an_overlap(tmp_path: Path) -> None:
    """Before: old and new are verified, and the verdict says which. After it the old one is refused, also on
    connections that were verified before."""
    clock = _Clock()
    with _appliances(tmp_path, "old", "new") as ((old, path), (new, following)):
        judge = _overlap(path, following, clock)
        assert [("verified", True), ("verified", False), ("verified", True)] == [
            ((verdict := judge.verify(each.url)).status, is_old(verdict)) for each in (old, new, old)]
        assert "overlap" in str(judge.verify(old.url))
        with _port(lambda: judge, [old]) as (url, _, _):
            assert "0" == _ask(url, "x")
            clock.now = NOW + timedelta(hours=1)
            assert "evidence-policy" == _ask(url, "x")
        assert ("policy not met", "verified") == (judge.verify(old.url).status, judge.verify(new.url).status)


def test_neither_is_an_overlap(tmp_path: Path) -> None:
    """A third policy is refused, with the rule that failed; so is a machine under OLD that fails otherwise."""
    with _appliances(tmp_path, "a", "b", "c") as found:
        judge = _overlap(found[0][1], found[1][1], _Clock())
        third = judge.verify(found[2][0].url)
        assert ("policy not met", "evidence-policy") == (third.status, third.code)
        _debug(found[0][0])
        refused = judge.verify(found[0][0].url)
        assert ("evidence-debug", load(found[0][1]).digest) == (refused.code, refused.policy_sha384)


def test_requests_move_over_by_themselves(tmp_path: Path) -> None:
    """The next machine is not there yet; when it appears, conversations go there, and none fails on the way."""
    clock = _Clock()
    with _appliances(tmp_path, "old", "new") as ((old, path), (new, following)):
        source = new.attestor._provider
        assert isinstance(source, fake.SnpSource)
        source.fields = {"policy": 1 << 17 | 1 << 19}  # not fit to be verified yet
        with _port(lambda: _overlap(path, following, clock), [old, new]) as (url, _, _):
            answers, stop = list[str](), threading.Event()

            def ask() -> None:
                while not stop.is_set():
                    answers.append(_ask(url, "one conversation", "and", str(len(answers))))

            asking = threading.Thread(target=ask)
            asking.start()
            waiting.until(lambda: len(answers) > 5, "answers")
            source.fields = {}
            waiting.until(lambda: "1" in answers[-3:], "answer of the next")
            time.sleep(0.2)
            stop.set()
            asking.join()
        moved = answers.index("1")
        assert ({"0"}, {"1"}) == (set(answers[:moved]), set(answers[moved:]))


def test_files_that_change_count_at_once(tmp_path: Path) -> None:
    """A policy that is replaced is in force for the next request; one that is broken leaves the last in force, and is
    reported."""
    with _appliances(tmp_path, "a", "b") as ((first, path), (_, other)):
        here, errors = tmp_path / "here.hcl", list[str]()
        here.write_text(path.read_text())

        def make() -> Verifier:
            return _verifier(here)

        judge = Renewal(make, (here,), tell=lambda error: errors.append(error.code), seconds=0.0)
        fleet = Fleet(judge, [target.endpoint(first.url)])
        assert 200 == fleet.send("GET", "/v1/models", [], b"").status
        here.write_text("nonsense")
        assert 200 == fleet.send("GET", "/v1/models", [], b"").status
        assert len(errors) == 1
        here.write_text(other.read_text())
        with pytest.raises(Refusal) as caught:
            fleet.send("GET", "/v1/models", [], b"")
        assert "policy not met" in caught.value.message
        fleet.close()


def test_an_overlap_needs_an_end(tmp_path: Path) -> None:
    """On the command line: the next policy and the time come together."""
    for words in (["--next", "x.hcl"], ["--until", "2026-12-01T00:00:00Z"], ["--next-measurements", "m.json"]):
        args = parser_of("verify").parse_args(["verify", "https://127.0.0.1:1", "--policy", "x.hcl", *words])
        with pytest.raises(PolicyError) as caught:
            verifying.judge(args)
        assert "overlap-incomplete" == caught.value.code
