"""Rates, tenants and timing: what one key may ask, and what an onlooker learns."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.api.answers import AnswerFacts
from appliance.api.problems import RequestError
from appliance.api.shapes import DONE, ChatShape
from appliance.boot.planning import budget
from appliance.engine.decode.events import End, Text
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from appliance.policy.schema import Tenant
from appliance.service.admission import privacy
from appliance.service.admission.limits import Account, Accounts, Occupancy, Purse, Rates, Window
from appliance.service.admission.privacy import Pacer, Timing, bucket_us, pad_event, round_up, spaces
from appliance.service.admission.tenants import Roster
from appliance.service.answering.respond import portions
from appliance.service.delivery import stream
from appliance.service.delivery.inbox import Batch
from appliance.service.delivery.outbox import Outbox
from tests.support.server import write_policy


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_never_more_than_the_limit_in_any_minute() -> None:
    """However requests fall, no 60 seconds hold more than the limit, and the wait that is told is enough."""
    clock, numbers = Clock(), random.Random(7)
    window, taken = Window(10, 60.0, clock), []
    for _ in range(2000):
        clock.now += numbers.choice([0.0, 0.1, 1.0, 7.0])
        amount = numbers.randint(1, 4)
        wait = window.wait(amount)
        if wait > 0:
            clock.now += wait
            assert window.wait(amount) == 0
        window.charge(amount)
        taken.append((clock.now, amount))
        assert sum(a for t, a in taken if t > clock.now - 60) <= 10


def test_unused_tokens_come_back() -> None:
    """A request is charged for all that it may use, and gets back what it did not."""
    clock = Clock()
    account = Account(Rates(tokens_per_minute=100, tokens_per_day=150), clock)
    grant = account.admit_tokens(90)
    with pytest.raises(RequestError) as caught:
        account.admit_tokens(20)
    assert ("rate_limit_exceeded", 429) == (caught.value.code, caught.value.status)
    assert "59" == caught.value.headers["retry-after"]  # some clients follow no minute
    clock.now += 59
    with pytest.raises(RequestError) as caught:
        account.admit_tokens(20)
    assert caught.value.headers["retry-after"] in ("1", "2")
    clock.now -= 59
    grant.settle(30)
    assert 70 == account.minute.remaining
    account.admit_tokens(70)
    clock.now += 61
    with pytest.raises(RequestError) as caught:
        account.admit_tokens(60)
    assert "insufficient_quota" == caught.value.code
    assert 86000 < int(caught.value.headers["retry-after"])
    clock.now += 86400 + 200
    account.admit_tokens(60)


def test_tells_what_can_never_pass() -> None:
    """A request above the limit itself is refused without a time to retry."""
    with pytest.raises(RequestError) as caught:
        Account(Rates(tokens_per_minute=10)).admit_tokens(11)
    assert {} == caught.value.headers


def test_what_a_key_takes(tmp_path: Path, tiny_model: Path) -> None:
    """A key that is used all day, and then as often as it may be, takes no more than the memory's sum has for it."""
    sums = []
    for count in (1, 9):
        policy = write_policy(tmp_path, {"tiny": tiny_model})
        keys = ", ".join(f'"{hashlib.sha256(bytes([number])).hexdigest()}"' for number in range(count - 1))
        policy.write_text(policy.read_text().replace("  tenant", f"""  tenant "more" {{
            models = ["tiny"]
            api_key_sha256 = [{keys}]
          }}
          tenant""", 1) if keys else policy.read_text())
        sums.append(budget.divide(load(policy).policy, Catalogue({"tiny": tiny_model}), None).nbytes)
    now = [0.0]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        account = Account(Rates(6000, 10**6, 10**9), clock=lambda: now[0])
        for pause, count in ((43.2, 2000), (0.03, 2000)):
            for _ in range(count):
                now[0] += pause
                account.admit_request()
                account.admit_tokens(10)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 8 * taken <= sums[1] - sums[0] <= 32 * taken


def _taken(places: Occupancy, tenant: str, wanted: int) -> int:
    """How many of the places that a tenant wants it gets."""
    for got in range(wanted):
        try:
            places.take(tenant)
        except RequestError:
            return got
    return wanted


@pytest.mark.parametrize(("most", "tenants", "alone", "again"), [
    (1, 3, 1, 1), (3, 9, 3, 1), (8, 1, 8, 1), (8, 2, 7, 1), (8, 3, 6, 1), (8, 99, 6, 0)])
def test_no_tenant_has_all_places(most: int, tenants: int, alone: int, again: int) -> None:
    """A tenant gets all places but those that are kept: one for each that holds none, a quarter of all at most. Who
    holds none gets any that is free, and what nobody is left to take is for all."""
    names = [str(number) for number in range(tenants)]
    places = Occupancy(most, names)
    assert alone == _taken(places, "0", most + 1)
    others = [name for name in names[1:] if _taken(places, name, 1)]
    assert min(tenants - 1, most - alone) == len(others)
    places.leave("0")
    assert again == _taken(places, "0", 1)


def test_places_are_kept_for_those_who_may_ask() -> None:
    """Roster who may ask no model get a place to be refused in, but none that is kept, and never more than there are:
    what they hold leaves as many places to those who may ask."""
    places = Occupancy(8, ["a", "b", "c"])
    assert [1, 1, 1] == [_taken(places, name, 1) for name in ("x", "y", "z")]
    assert (3, 1, 1, 0) == tuple(_taken(places, name, 8) for name in "abca")
    few = Occupancy(8, ["a"])
    assert (7, 1, 0) == (sum(_taken(few, name, 1) for name in "rstuvwxyz"), _taken(few, "a", 9), _taken(few, "r", 9))


def test_rate_limit_headers() -> None:
    """Headers carry OpenAI's names, for limits that exist; of key and tenant, those of whoever has less left."""
    key, tenant = Account(Rates(requests_per_minute=5), Clock()), Account(Rates(3, 100), Clock())
    Purse(key).admit_request()
    headers = Purse(key).headers()
    assert ("5", "4") == (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"])
    assert "x-ratelimit-limit-tokens" not in headers
    headers = Purse(key, tenant).headers()
    assert ("3", "3", "100") == tuple(headers[f"x-ratelimit-{name}"] for name in (
        "limit-requests", "remaining-requests", "remaining-tokens"))


def _tenant(name: str = "acme", **limits: int) -> Tenant:
    return Tenant(name=name, api_key_sha256=(hashlib.sha256(name.encode()).hexdigest(),), **limits)  # type: ignore[arg-type]


def test_a_tenant_pays_for_all_its_keys_at_its_prices() -> None:
    """Two keys share what the tenant has; a token counts as its price says; a refusal charges neither account."""
    accounts = Accounts(Rates(requests_per_minute=9, tokens_per_minute=1000), Clock())
    acme = _tenant(requests_per_minute=3, tokens_per_minute=100, prompt_price=2, answer_price=5)
    accounts.serve([acme, _tenant("free")])
    one, two = (accounts.purse(key, acme) for key in (b"1", b"2"))
    for purse in (one, one, two):
        purse.admit_request()
    with pytest.raises(RequestError, match="too many requests of the tenant in a minute"):
        two.admit_request()
    assert 8 == accounts.of(b"2").requests.remaining
    settle = one.admit_tokens(10, 16)  # 20 and 80
    with pytest.raises(RequestError, match="too many tokens of the tenant in a minute") as caught:
        two.admit_tokens(1, 1)
    assert ("rate_limit_exceeded", 1000) == (caught.value.code, accounts.of(b"2").minute.remaining)
    settle(10, 2)
    assert (70, 988) == (accounts.tenants["acme"].minute.remaining, accounts.of(b"1").minute.remaining)
    assert None is accounts.purse(b"3", _tenant("free")).tenant


def test_limits_of_a_newer_list_hold_at_once() -> None:
    """What was charged to a limit weighs on its successor. Where there was none, nothing was charged, and what such a
    request gives back is nobody's; a tenant that goes has no account."""
    accounts = Accounts(Rates(), Clock())
    before, after = _tenant(tokens_per_minute=100), _tenant(tokens_per_minute=40, tokens_per_day=1000)
    accounts.serve([before])
    settle = accounts.purse(b"1", before).admit_tokens(10, 20)
    accounts.serve([after])
    own = accounts.tenants["acme"]
    assert (10, 1000) == (own.minute.remaining, own.day.remaining)
    with pytest.raises(RequestError):
        accounts.purse(b"1", after).admit_tokens(1, 10)
    settle(0, 0)
    assert (40, 1000) == (own.minute.remaining, own.day.remaining)
    accounts.serve([_tenant()])
    assert {} == accounts.tenants


def test_a_key_ends_at_its_time() -> None:
    """By the clock that is given, to the second, and for the key alone whose end it is."""
    now, digests = [99.9], {key: hashlib.sha256(key.encode()).hexdigest() for key in ("sk-old", "sk-new")}
    tenant = Tenant(name="acme", models=("demo",), api_key_sha256=tuple(digests.values()))
    roster = Roster([tenant], {digests["sk-old"]: 100}, lambda: now[0])
    assert ("acme", {"acme": 100}) == (roster.authenticate("Bearer sk-old").name, roster.next_ends)
    now[0] = 100.0
    with pytest.raises(RequestError, match="has expired") as caught:
        roster.authenticate("Bearer sk-old")
    assert ("api_key_expired", 401, {}) == (caught.value.code, caught.value.status, roster.next_ends)
    assert "acme" == roster.authenticate("Bearer sk-new").name
    with pytest.raises(RequestError) as caught:
        roster.authenticate("Bearer sk-older")
    assert "invalid_api_key" == caught.value.code


KEY = "sk-test-1"
TENANTS = Roster([
    Tenant(name="acme", models=("demo",), api_key_sha256=(hashlib.sha256(KEY.encode()).hexdigest(),)),
    Tenant(name="watch", role="auditor", api_key_sha256=(hashlib.sha256(b"sk-test-2").hexdigest(),)),
])


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer  {KEY} "])
def test_knows_a_key(header: str) -> None:
    """A key names its tenant."""
    assert "acme" == TENANTS.authenticate(header).name


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY} x", "Bearer " + KEY * 100,
    "Bearer " + hashlib.sha256(KEY.encode()).hexdigest()])
def test_refuses_other_keys(header: str | None) -> None:
    """Anything but a key's own text is refused, its hash included."""
    with pytest.raises(RequestError) as caught:
        TENANTS.authenticate(header)
    assert ("invalid_api_key", "Bearer") == (caught.value.code, caught.value.headers["www-authenticate"])


def test_roles() -> None:
    """An auditor watches and a user asks; neither does the other's."""
    user, auditor = TENANTS.authenticate(f"Bearer {KEY}"), TENANTS.authenticate("Bearer sk-test-2")
    user.require("ask")
    auditor.require("watch")
    for caller, right in ((user, "watch"), (auditor, "ask")):
        with pytest.raises(RequestError):
            caller.require(right)  # type: ignore[arg-type]
    assert (True, False) == (user.may_ask("demo"), auditor.may_ask("demo"))


ROUNDED = [(0, 16, 0), (1, 16, 16), (16, 16, 16), (17, 16, 32), (7, 1, 7)]


@pytest.mark.parametrize(("count", "multiple", "expected"), ROUNDED)
def test_rounds_up(count: int, multiple: int, expected: int) -> None:
    """Counts go up to the next multiple."""
    assert expected == round_up(count, multiple)


@pytest.mark.parametrize("multiple", [1, 2, 3, 64, 512])
def test_pads_sizes(multiple: int) -> None:
    """Bodies and events get a multiple of the size, and a reader sees no difference."""
    for length in range(70):
        body, events = json.dumps("x" * length).encode(), b"data: " + b"x" * length + b"\n\n"
        assert 0 == (len(body) + spaces(len(body), multiple)) % multiple
        assert 0 <= spaces(len(body), multiple) < multiple
        assert 0 == len(pad_event(events, multiple)) % multiple
        lines = pad_event(events, multiple).decode().splitlines()
        assert [f"data: {'x' * length}", ""] == [line for line in lines if not line.startswith(":")]
    assert (None, b"x") == (spaces(2, None), pad_event(b"x", None))


def test_durations_for_the_log_are_on_the_grid() -> None:
    """The log tells no finer time than the wire."""
    assert (200_000, 123_000) == (bucket_us(0.123, 0.1), bucket_us(0.123, 0))


SHAPE = ChatShape(AnswerFacts("req-0", "demo", "fp"), with_usage=False, created=0)


class Words:
    """A vocabulary that nobody asks."""

    def piece(self, token: int) -> bytes:
        """No token's."""
        raise KeyError(token)

    def is_special(self, token: int) -> bool:
        """No token's."""
        raise KeyError(token)


def _events(batches: AsyncIterator[Batch], pacer: Pacer) -> AsyncIterator[bytes]:
    return stream.AnswerStream(SHAPE, batches, Outbox(Words()), pacer).events()


async def _answer(delays: list[float]) -> AsyncIterator[Batch]:
    for number, delay in enumerate(delays):
        await asyncio.sleep(delay)
        yield (Text(0, f"{number} ", 1),)
    yield (End(0, "stop"),)


async def _times(timing: Timing, delays: list[float]) -> tuple[list[float], str]:
    loop = asyncio.get_running_loop()
    arrived, text = loop.time(), ""
    times = []
    async for data in _events(_answer(delays), Pacer(timing, arrived)):
        times.append(loop.time() - arrived)
        for line in data.decode().split("\n\n"):
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    return times, text


SPEEDS = [[0.01] * 8, [0.05, 0.002, 0.03, 0.001], [0.09], [0.001] * 40]


@pytest.mark.parametrize("delays", SPEEDS)
def test_padded_streams_tell_only_the_grid(delays: list[float]) -> None:
    """With padding, one event leaves on each multiple and the last on the total's, whatever the tokens' times. A busy
    machine can be late, but not each time."""
    found = []
    for _ in range(30):
        times, text = asyncio.run(_times(Timing(first_token=0.1, total=0.4), delays))
        assert "".join(f"{number} " for number in range(len(delays))) == text
        found.append([round(time, 1) for time in times])
        if found[-1] == [0.1, 0.2, 0.3, 0.4]:
            return
    pytest.fail(f"never on the grid: {found}")


@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_portions_of_long_answers_tell_no_sizes(jitter: float) -> None:
    """Of answers that are padded to the same size all portions leave at the same times, however much of the last is
    spaces, which take no time to make. What is made slower than the grid is late, and what comes next is not."""
    async def leaves(parts: list[tuple[int, float]]) -> list[tuple[float, int]]:
        clock, found = Clock(), list[tuple[float, int]]()

        async def made() -> AsyncIterator[bytes]:
            for nbytes, seconds in parts:
                clock.now += seconds
                yield b"x" * nbytes

        async def sleep(seconds: float) -> None:
            clock.now += seconds

        pacer = Pacer(Timing(total=0.1, jitter=jitter), clock.now - 0.01, clock=clock, sleep=sleep)
        async for portion in portions(made(), 100, pacer):
            if not found:
                await pacer.hold_end()  # as the head does
            found.append((clock.now - 999.99, len(portion)))
        return found

    for parts in ([(30, 0.02)] * 9, [(30, 0.001)] * 7, [(300, 0.0)], [(1, 0.0001)] * 201):
        found = asyncio.run(leaves(parts))
        assert [100, 100] == [nbytes for _, nbytes in found[:2]]
        assert sum(nbytes for nbytes, _ in parts) - 200 == found[2][1]
        assert [pytest.approx(at, abs=2 * jitter + 1e-6) for at in (0.1, 0.2, 0.3)] == [at for at, _ in found]
    assert [(pytest.approx(0.1, abs=jitter + 1e-6), 100)] == asyncio.run(leaves([(50, 0.01)] * 2))


@pytest.mark.parametrize(("grid", "every"), [(0.02, 3), (0.05, 1), (0.1, 1)])
def test_comments_keep_a_padded_stream_awake(grid: float, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head leaves on a multiple of the grid; until the first token a comment on every so many, and nothing else."""
    monkeypatch.setattr(privacy, "AWAKE_SECONDS", 0.05)
    came, ticks = list[bytes](), list[float]()

    class Noting(Pacer):
        async def until(self, due: float) -> None:
            ticks.append((due - self._arrived) / grid)
            await super().until(due)

    async def answers() -> AsyncIterator[Batch]:
        while came.count(stream.COMMENT) < 4:
            await asyncio.sleep(0.001)
        yield (Text(0, "a", 1),)
        yield (End(0, "stop"),)

    async def listen() -> None:
        pacer = Noting(Timing(first_token=grid, total=grid), asyncio.get_running_loop().time())
        async for data in _events(answers(), pacer):
            came.append(data)

    asyncio.run(listen())
    assert [stream.HEAD, *[stream.COMMENT] * 4] == came[:5]
    assert all(data.startswith(b"data: ") for data in came[5:])
    assert [pytest.approx(round(tick), abs=1e-3) for tick in ticks] == ticks
    assert all(later - tick > every - 0.5 for tick, later in itertools.pairwise(ticks[:5]))


def test_comments_keep_an_unpadded_stream_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever nothing has come for a while: before the first token, and between tokens."""
    monkeypatch.setattr(privacy, "AWAKE_SECONDS", 0.05)
    came: list[bytes] = []

    async def answers() -> AsyncIterator[Batch]:
        for text in ("a", "b"):
            while came.count(stream.COMMENT) < 3 * (ord(text) - 96):
                await asyncio.sleep(0)
            yield (Text(0, text, 1),)
        yield (End(0, "stop"),)

    async def listen() -> None:
        async for data in _events(answers(), Pacer(Timing(), 0.0)):
            came.append(data)

    asyncio.run(listen())
    events = [number for number, data in enumerate(came) if data != stream.COMMENT]
    assert 3 == len(events)  # a, b and the end
    assert events[0] >= 3 <= events[1] - events[0] - 1
    assert came[-1].endswith(DONE)


def test_an_unpadded_stream_that_fails_while_it_waits_says_so() -> None:
    """What its events raise passes, and its comments end."""
    async def answers() -> AsyncIterator[Batch]:
        await asyncio.sleep(0)
        raise RequestError("first_token_timeout")
        yield (Text(0, "a", 1),)

    async def listen() -> None:
        async for _ in _events(answers(), Pacer(Timing(), 0.0)):
            pytest.fail("nothing comes")

    with pytest.raises(RequestError, match="no token could be produced"):
        asyncio.run(listen())


def test_unpadded_streams_do_not_wait() -> None:
    """Without padding an event leaves with each text."""
    times, _text = asyncio.run(_times(Timing(), [0.0, 0.0, 0.0]))
    assert 4 == len(times)
    assert max(times) < 0.2


def test_jitter_comes_on_top() -> None:
    """The random delay lies between nothing and the policy's bound, and differs."""
    clock, delays = Clock(), []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    async def hold() -> None:
        for _ in range(200):
            await Pacer(Timing(total=1.0, jitter=0.5), 999.5, clock=clock, sleep=sleep).hold_end()

    asyncio.run(hold())
    assert 0.5 <= min(delays) < 0.6 < 0.9 < max(delays) < 1.0
