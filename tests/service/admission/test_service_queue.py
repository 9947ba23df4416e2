"""The queue of schema 2: who waits, for how long, and how an answer that takes too long ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from appliance.api.problems import RequestError
from appliance.boot.planning import budget
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from appliance.service.admission.limits import Occupancy
from appliance.service.admission.turns import Priorities, Queue, Turns
from tests.support import waiting
from tests.support.demo_model import demo_model
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

CLIENTS = 50


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_tenants_take_turns() -> None:
    """Waiting requests get places by tenant, then in order; one that left is passed over."""
    turns, order = Turns(1, ["a", "b", "c"]), list[str]()
    first = turns.ask("a", lambda: None)
    tickets = {name: turns.ask(name[0], lambda name=name: order.append(name))  # type: ignore[misc]
               for name in ("a1", "a2", "a3", "b1", "c1", "b2")}
    assert (6, 1) == (turns.waiting, turns.in_progress)
    tickets["b1"].leave()
    tickets["b1"].leave()
    for ticket in (first, *(tickets[name] for name in ("a1", "b2", "c1", "a2", "a3"))):
        ticket.leave()
    assert ["a1", "b2", "c1", "a2", "a3"] == order
    assert (0, 0) == (turns.waiting, turns.in_progress)


def test_one_that_needs_two_places_takes_turns() -> None:
    """It gets each of them in a turn of its tenant; others have theirs between, and its places come back together."""
    turns, order = Turns(2, ["a", "b"]), list[str]()
    first, second = turns.ask("a", lambda: None), turns.ask("a", lambda: None)
    both = turns.ask("b", lambda: order.append("both"), 2)
    third = turns.ask("a", lambda: order.append("third"))
    first.leave()
    assert (["both"], 1, 1) == (order, turns.held("b"), turns.waiting)
    second.leave()
    assert (["both", "third"], 0) == (order, turns.waiting)
    third.leave()
    assert (["both", "third", "both"], 2) == (order, turns.held("b"))
    both.leave()
    assert 0 == turns.in_progress


def test_a_heavy_request_leaves_what_is_kept_for_others() -> None:
    """One that takes all places which a tenant may have leaves each other tenant one, at once."""
    turns, begun = Turns(16, "abcde"), list[str]()
    assert 12 == turns.left
    turns.ask("a", lambda: begun.append("a"), turns.left)
    assert 12 == turns.held("a")
    for tenant in "bcde":
        turns.ask(tenant, lambda tenant=tenant: begun.append(tenant))
    assert list("bcde") == begun[12:]


@pytest.mark.parametrize("seed", range(20))
def test_heavy_requests_never_wait_for_each_other_for_ever(seed: int) -> None:
    """However heavy requests of several tenants come and leave, in part or whole, each gets all its places once those
    that have all of theirs leave."""
    numbers, turns = random.Random(seed), Turns(9, "abcd", priorities=Priorities(places={"d": 4}))
    here, got = [], dict[int, int]()
    for number in range(300):
        tenant = numbers.choice("abcd")
        got[number] = 0
        here.append((number, turns.ask(tenant, lambda number=number: got.__setitem__(number, got[number] + 1),
                                       numbers.randint(1, 4 if tenant == "d" else turns.left))))
        while numbers.random() < 0.6 and here:
            whole = [entry for entry in here if entry[1].held == entry[1].places]
            gone = numbers.choice(whole) if whole and numbers.random() < 0.8 else numbers.choice(here)
            here.remove(gone)
            gone[1].leave()
        assert [ticket.held for _, ticket in here] == [got[number] for number, _ in here]
        assert turns.in_progress == sum(ticket.held for _, ticket in here) <= 9
    while here:
        whole = [entry for entry in here if entry[1].held == entry[1].places]
        assert whole  # else all wait for each other
        for entry in whole:
            here.remove(entry)
            entry[1].leave()
    assert (0, 0) == (turns.waiting, turns.in_progress)


def test_places_stay_for_those_who_hold_none() -> None:
    """A tenant with a queue of its own does not take the place of one who comes later."""
    turns, begun = Turns(8, ["a", "b", "c"]), list[str]()
    for _ in range(20):
        turns.ask("a", lambda: begun.append("a"))
    assert 6 == len(begun)
    turns.ask("b", lambda: begun.append("b"))
    turns.ask("c", lambda: begun.append("c"))
    assert ["b", "c"] == begun[6:]


def test_other_tenants_from_now_on() -> None:
    """As many places are kept as there are others now; places that are held stay; weights and bounds are the new ones.
    """
    turns, order = Turns(8, ["a"]), list[str]()
    held = [turns.ask("a", lambda: None) for _ in range(7)]
    assert (8, 7) == (turns.left, turns.held("a"))
    turns.serve(["b", "c"], Priorities({"b": 2}, {"c": 1}))
    assert (7, 7) == (turns.left, turns.held("a"))
    waiting = [turns.ask(name[0], lambda name=name: order.append(name))  # type: ignore[misc]
               for name in ("b1", "b2", "b3", "c1", "c2")]
    assert ["b1"] == order
    for ticket in held:
        ticket.leave()
    assert ["b1", "c1", "b2", "b3"] == order  # one place stays for c until it holds one
    assert (1, 1) == (turns.held("c"), turns.waiting)
    for ticket in waiting:
        ticket.leave()
    assert 0 == turns.in_progress


def test_who_is_cancelled_while_waiting_leaves() -> None:
    """A task that ends while it waits for a place takes none; the next one gets it."""
    async def scenario() -> tuple[int, int, str]:
        turns = Turns(1, ["a"])
        first = await turns.place("a")
        second = asyncio.ensure_future(turns.place("a"))
        third = asyncio.ensure_future(turns.place("a"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        waiting = turns.waiting
        first.leave()
        return waiting, turns.in_progress, (await third).tenant

    assert (1, 1, "a") == asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_no_place_is_lost(seed: int) -> None:
    """However requests come and go, no more have a place than there are, and none waits while one is free for it."""
    numbers, turns = random.Random(seed), Turns(5, ["a", "b", "c"])
    here = []
    for _ in range(400):
        if here and numbers.random() < 0.5:
            here.pop(numbers.randrange(len(here))).leave()
        else:
            here.append(turns.ask(numbers.choice("abc"), lambda: None))
        held = [ticket.tenant for ticket in here if ticket.since is not None]
        waiting = {ticket.tenant for ticket in here if ticket.since is None}
        kept = min(len({"a", "b", "c"} - set(held)), 1)
        assert (len(held), len(here) - len(held)) == (turns.in_progress, turns.waiting)
        assert len(held) <= 5
        for tenant in waiting:
            assert tenant in held
            assert 5 - len(held) <= kept
    for ticket in here:
        ticket.leave()
    assert (0, 0) == (turns.waiting, turns.in_progress)


def test_refused_requests_return_as_places_become_free() -> None:
    """Each of many refused requests is told a time of its own, and places are given back as fast as they return."""
    clock = Clock()
    queue = Queue(4, ["a"], clock)
    places = Occupancy(5, ["a"], queue.retry_after)
    tickets = [queue.answers.ask("a", lambda: None) for _ in range(4)]
    clock.now += 8.0  # each place was held for so long
    for ticket in tickets:
        ticket.leave()
    for _ in range(4):
        queue.answers.ask("a", lambda: None)
    for _ in range(5):
        places.take("a")
    told = []
    for _ in range(6):
        with pytest.raises(RequestError) as caught:
            places.take("a")
        told.append(caught.value.retry_after)
    assert [3.0, 6.0, 9.0, 12.0, 15.0, 18.0] == told  # four places in eight seconds, and half as long on top
    clock.now += 100
    assert 3.0 == queue.retry_after("a")
    assert 59 >= max(queue.retry_after("a") for _ in range(100))  # clients follow no longer time


def test_waiting_requests_are_in_the_sum(tmp_path: Path, tiny_model: Path) -> None:
    """Each request that may wait counts with its tokens and a connection, none with a body; schema 1 has none."""
    lines = {}
    for schema, queued in ((1, None), (2, 0), (2, 100), (2, 60_000)):
        limits = 'prompt_tokens = 1000\n  concurrent_requests = 4\n  request_size = "8MiB"'
        limits += "" if queued is None else f"\n  queued_requests = {queued}"
        policy = load(write_policy(tmp_path, {"tiny": tiny_model}, limits=limits, schema=schema)).policy
        found = budget.divide(policy, Catalogue({"tiny": tiny_model}), None)
        lines[queued] = {line.what: line.nbytes for line in found.lines}
    assert lines[None] == lines[0]
    assert lines[0]["requests, 4 x"] == lines[100]["requests, 4 x"]
    assert 100 * ((256 << 10) + 64 * 1000) == lines[100]["requests that wait, 100 x"]
    assert lines[100]["connections, 236 x"] == lines[0]["connections, 136 x"] * 236 // 136
    assert 1024 * ((256 << 10) + 64 * 1000) == lines[60_000]["requests that wait, 1024 x"]


ENDLESS = {str(token): -100 for token in range(3)}
HEAVY: list[dict[str, Any]] = [
    {"n": 16}, {"n": 48}, {"n": 16, "best_of": 16}, {"prompt": ["abc"] * 16}, {"prompt": ["a", "b"], "n": 24},
    {"n": 3, "use_beam_search": True}]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server with four places, one of which is kept for the other tenant."""
    policy = write_policy(tmp_path_factory.mktemp("several"), {"tiny": tiny_model}, schema=2, limits=(
        "concurrent_requests = 4\n  queued_requests = 64\n  choices = 128\n  generation_tokens = 1500"),
        model="context_length = 2048\n  sampling {\n    max_beams = 8\n  }")
    server = Server(policy, [tiny_model]).wait_ready()
    yield server
    server.stop()


@pytest.mark.parametrize("more", HEAVY)
def test_a_heavy_request_leaves_places_to_others(several: Server, more: dict[str, Any]) -> None:
    """While one request has as many answers as the policy allows, and as long ones, another tenant's are answered one
    after the other. The heavy one goes on."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 1500, "seed": 3, **more}
    if "use_beam_search" not in more:
        body["logit_bias"] = ENDLESS
    with several.http() as http, ThreadPoolExecutor(1) as pool:
        heavy = pool.submit(http.post, "/v1/completions", json=body)
        with several.http(AUDITOR_KEY) as auditor:
            waiting.until(lambda: heavy.done() or "appliance_cache_slots_used{model=\"tiny\"} 0.0" not in
                          auditor.get("/metrics").text, "sight of the heavy request")
        for _ in range(3):
            several.client(OTHER_KEY).completions.create(model="tiny", prompt="xyz", max_tokens=2)
        over, answer = heavy.done(), heavy.result()
    assert (False, 200) == (over, answer.status_code), answer.text
    assert body.get("n", 1) * len(more.get("prompt", ["abc"])) == len(answer.json()["choices"])


def test_a_search_is_no_wider_than_others_leave(several: Server) -> None:
    """One that would take the place that is kept for another tenant is refused, and told what is allowed."""
    with several.http() as http:
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "n": 4, "use_beam_search": True})
    assert (400, "use_beam_search") == (answer.status_code, answer.json()["error"]["param"])
    assert "at most 3 texts at the same time are allowed" in answer.json()["error"]["message"]


def test_heavy_requests_of_two_tenants_beside_each_other(several: Server) -> None:
    """Four at the same time, each of which counts as three of four places, are all answered, as each is alone."""
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 30, "logit_bias": ENDLESS, "seed": 3, "n": 45}

    def ask(key: str) -> list[str]:
        with several.http(key) as http:
            return [each["text"] for each in http.post("/v1/completions", json=body).json()["choices"]]

    alone = ask(KEY)
    with ThreadPoolExecutor(4) as pool:
        assert [alone] * 4 == list(pool.map(ask, [KEY, OTHER_KEY, KEY, OTHER_KEY]))


def _served(server: Server, many: int, **more: Any) -> list[int]:
    """Status codes of many requests at once, without a client's retries; of two tenants."""
    def ask(number: int) -> int:
        try:
            server.client(OTHER_KEY if number % 10 == 0 else KEY).chat.completions.create(
                messages=[{"role": "user", "content": f"Say {number}."}], **more)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(ask, range(many)))


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server with one place, for which seven requests may wait."""
    policy = write_policy(tmp_path_factory.mktemp("place"), {"tiny": tiny_model}, schema=2,
                          limits='concurrent_requests = 1\n  queued_requests = 7')
    server = Server(policy, [tiny_model]).wait_ready()
    yield server
    server.stop()


def test_many_clients_at_once_are_all_served(tmp_path: Path, tiny_model: Path) -> None:
    """Fifty requests at once on four places all get their answer; under schema 1 most are refused."""
    limits = "concurrent_requests = 4"
    found = []
    for schema in (1, 2):
        server = Server(write_policy(tmp_path, {"tiny": tiny_model}, limits=limits, schema=schema),
                        [tiny_model]).wait_ready()
        found.append(_served(server, CLIENTS, model="tiny", max_tokens=20))
        assert 0 == server.stop()
    assert {200, 429} == set(found[0])
    assert [200] * CLIENTS == found[1]


def _slow(server: Server, key: str, body: bytes) -> socket.socket:
    """A request whose body is there but for the last byte."""
    connection = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=600)
    connection.sendall((f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
                        "content-type: application/json\r\nconnection: close\r\n"
                        f"content-length: {len(body)}\r\n\r\n").encode() + body[:-1])
    return connection


def test_the_queue_is_bounded_and_drains(one_place: Server) -> None:
    """More than may wait are refused, with a time; a tenant cannot fill the queue for another; and all who wait are
    served, those with a slow one before them too."""
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 2}).encode()
    slow = [_slow(one_place, KEY, body) for _ in range(7)]

    def refused() -> openai.RateLimitError | None:
        try:
            one_place.client().completions.create(model="tiny", prompt="abc", max_tokens=1)
        except openai.RateLimitError as error:
            return error
        return None

    error = waiting.until(refused, "refusal, once all have come")
    assert error is not None
    assert ("too_many_requests", True) == (error.code, 1 <= int(error.response.headers["retry-after"]) <= 59)
    slow.append(_slow(one_place, OTHER_KEY, body))
    time.sleep(0.2)
    for connection in slow:
        connection.sendall(body[-1:])
    heads = []
    for connection in slow:
        with connection:
            heads.append(connection.recv(12))
    assert [b"HTTP/1.1 200"] * 8 == heads


def test_who_leaves_the_queue_holds_nobody_up(one_place: Server) -> None:
    """Clients that leave while they wait make room; the next is served."""
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 2}).encode()
    for _ in range(4):
        slow = [_slow(one_place, KEY, body) for _ in range(6)]
        time.sleep(0.1)
        for connection in slow:
            connection.close()

    def served() -> int:
        with contextlib.suppress(openai.RateLimitError):
            return one_place.client().completions.create(
                model="tiny", prompt="abc", max_tokens=1).usage.completion_tokens
        return 0

    assert 1 == waiting.until(served, "sight that they left")


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the demo model, whose answers have one second; one at a time."""
    path = demo_model()
    policy = write_policy(tmp_path_factory.mktemp("brief"), {"demo": path}, schema=2, limits=(
        'concurrent_requests = 1\n  generation_tokens = 6000\n  answer_timeout = "1s"\n  first_token_timeout = "1m"'))
    server = Server(policy, [path]).wait_ready()
    yield server
    server.stop()


LONG: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Count to ten thousand."}],
                        "logit_bias": {str(token): -100 for token in range(3)}, "temperature": 1.5, "seed": 1}


def test_an_answer_that_takes_too_long_is_an_error(brief: Server) -> None:
    """Its status is 504, with a code, and it tells clients to try no more; the audit log has the code, and the next
    request is served."""
    with pytest.raises(openai.InternalServerError) as caught:
        brief.client().chat.completions.create(**LONG)
    headers = caught.value.response.headers
    assert (504, "answer_timeout") == (caught.value.status_code, caught.value.code)
    assert ("false", None) == (headers["x-should-retry"], headers.get("retry-after"))
    record = brief.audited(headers["x-request-id"])
    assert ("request.refused", "answer_timeout", 504) == (record["event"], record["code"], record["status"])
    with pytest.raises(openai.InternalServerError):  # with its default of two retries: asked once
        brief.client().with_options(max_retries=2).chat.completions.create(**LONG)
    assert 2 == len([each for each in brief.audit("request.refused") if each["code"] == "answer_timeout"])
    assert 1 == brief.client().chat.completions.create(**LONG, max_tokens=1).usage.completion_tokens


def test_a_stream_that_takes_too_long_ends_with_an_error(brief: Server) -> None:
    """Text comes, then an event with the error, and no finish reason."""
    with brief.http() as http, http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert 200 == answer.status_code
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
    assert {None} == {event["choices"][0]["finish_reason"] for event in events[:-1]}
    assert "answer_timeout" == events[-1]["error"]["code"]
    assert "answer_timeout" == brief.audited(answer.headers["x-request-id"])["code"]


def test_waiting_is_not_counted(brief: Server) -> None:
    """Requests that wait for the one place longer than an answer may take are answered all the same."""
    def ask(number: int) -> int:
        try:
            asked = {**LONG, "max_tokens": 2} if number == 3 else LONG
            time.sleep(0.2 * (number == 3))
            brief.client().chat.completions.create(**asked)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    with ThreadPoolExecutor(4) as pool:
        assert [504, 504, 504, 200] == list(pool.map(ask, range(4)))


def test_clients_that_retry_are_served(one_place: Server) -> None:
    """The official client, with its own retries, gets an answer for each of twice as many requests as fit."""
    def ask(number: int) -> int:
        client = one_place.client(OTHER_KEY if number % 4 == 0 else KEY).with_options(max_retries=6)
        answer = client.completions.create(model="tiny", prompt=str(number), max_tokens=2)
        return int(answer.usage.completion_tokens > 0)

    with ThreadPoolExecutor(16) as pool:
        assert 16 == sum(pool.map(ask, range(16)))


@pytest.mark.slow
def test_a_waiting_request_holds_no_text(tmp_path: Path, tiny_model: Path) -> None:
    """Sixty chats of a megabyte are under way on two places: the process grows by less than they have of text."""
    limits = ('concurrent_requests = 2\n  queued_requests = 64\n  request_size = "1MiB"\n  prompt_tokens = 64\n'
              '  generation_tokens = 200')
    policy = write_policy(tmp_path, {"tiny": tiny_model}, limits=limits, schema=2,
                          model='chat_template = "{{ messages[-1].content }}"')
    lines = {line.what.partition(",")[0]: line.nbytes
             for line in budget.divide(load(policy).policy, Catalogue({"tiny": tiny_model}), None).lines}
    allowed = sum(lines[name] for name in ("requests", "requests that wait", "answers", "connections"))
    assert allowed < 60 << 20
    server = Server(policy, [tiny_model]).wait_ready()
    messages = [{"role": "system", "content": "x" * 1_040_000}, {"role": "user", "content": "abc"}]
    body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 200,
                       "logit_bias": {str(token): -100 for token in range(3)}}).encode()

    def ask(number: int) -> int:
        with server.http() as http:
            return http.post("/v1/chat/completions", content=body,
                             headers={"content-type": "application/json"}).status_code

    assert 200 == ask(0)
    status = Path(f"/proc/{server.process.pid}/status")

    def kilobytes(name: str) -> int:
        return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith(f"{name}:")))

    before = kilobytes("VmRSS")
    with ThreadPoolExecutor(60) as pool:
        statuses = list(pool.map(ask, range(60)))
    grown = kilobytes("VmHWM") - before
    assert 0 == server.stop()
    assert [200] * 60 == statuses
    assert grown << 10 < allowed


def test_tenants_with_a_weight_and_a_limit():
    """A tenant of weight 2 has two turns for each one of another; one with a limit never holds more, and its waiting
    requests stop nobody."""
    turns, order = Turns(1, ["a", "b"], priorities=Priorities({"a": 2})), list[str]()
    tickets = {}
    for tenant in "aaaabbbb":
        number = len(tickets)
        tickets[number] = turns.ask(tenant, lambda number=number, tenant=tenant: order.append(f"{tenant}{number}"))
    while len(order) < 8:
        tickets[int(order[-1][1:])].leave()
    assert ["a0", "a1", "a2", "b4", "a3", "b5", "b6", "b7"] == order
    begun = list[str]()
    bounded = Turns(8, ["a", "b"], priorities=Priorities(places={"a": 2}))
    for tenant in "aaaab":
        bounded.ask(tenant, lambda tenant=tenant: begun.append(tenant))
    assert ["a", "a", "b"] == begun
    assert (2, 2) == (bounded.held("a"), bounded.waiting)
