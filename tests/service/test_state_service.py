"""The service with a state disk: quotas and the audit log outlive it, a disk that fails ends it, and /health tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from appliance.auditor.statedisk import examine
from appliance.errors import PolicyError, StateError
from appliance.keys.providers import Secret
from appliance.policy.schema import Tenant
from appliance.service.admission import quotas
from appliance.service.admission.limits import Accounts, Rates
from appliance.state.disk import MOST_QUOTAS, StateDisk
from tests.support import waiting
from tests.support.engines import synthetic_model
from tests.support.pages import ROOT, lines
from tests.support.server import AUDITOR_KEY, Server, sha256, write_policy
from tests.support.state_by_spec import saved_requests

KEY_HEX = "1f" * 32
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
audit {{
  sink = "state"
}}
"""


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk in memory: the policy names devices below /dev."""
    path = Path(f"/dev/shm/appliance-test-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, 4 << 20)
    yield path
    path.unlink()


def _deployment(folder: Path, disk: Path) -> tuple[Path, Path]:
    """A policy with a state disk, and its model."""
    key = folder / "state.key"
    key.write_text(KEY_HEX)
    key.chmod(0o600)
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    policy = write_policy(folder, {"tiny": model}, limits="tokens_per_day = 5000\n  requests_per_minute = 3")
    policy.write_text(policy.read_text() + STATE.format(device=disk, key=key))
    return policy, model


def _events(disk: Path) -> list[dict[str, object]]:
    return [json.loads(frame.payload) for frame in examine(disk, Secret(bytearray.fromhex(KEY_HEX)))[2]
            if frame.kind == 2]


def _ask(server: Server) -> None:
    server.client().completions.create(model="tiny", prompt="a b", max_tokens=2)


def test_quotas_and_audit_log_outlive_a_kill(tmp_path: Path, disk: Path) -> None:
    """Two requests, kill -9, a new start: the third is the last of the minute; both lives are in one log."""
    policy, model = _deployment(tmp_path, disk)
    server = Server(policy, [model], measured=False).wait_ready()
    _ask(server)
    _ask(server)
    health = server.http().get("/health").json()
    assert (1, 3 << 20 >= health["state"]["free_bytes"]) == (health["state"]["epoch"], True)
    assert "passed" == next(step["verdict"] for step in health["boot"] if step["step"] == "state")
    waiting.until(lambda: 2 == saved_requests(bytes.fromhex(KEY_HEX), disk), "quota that is written")
    server.process.kill()
    server.process.wait()
    server = Server(policy, [model], measured=False).wait_ready()
    try:
        _ask(server)
        with pytest.raises(openai.RateLimitError, match="too many requests in a minute"):
            _ask(server)
        assert 2 == server.http().get("/health").json()["state"]["epoch"]
    finally:
        assert 0 == server.stop()
    events = _events(disk)
    names = [event["event"] for event in events]
    assert [1, 2] == [event["epoch"] for event in events if event["event"] == "state.opened"]
    assert (2, 3, 1) == (names.count("boot.ready"), names.count("request.done") - names_of(events, "/health"),
                         names.count("audit.closed"))
    assert "" == server.text("audit.jsonl")


def names_of(events: list[dict[str, object]], endpoint: str) -> int:
    """How many requests of an endpoint were answered."""
    return sum(event["event"] == "request.done" and event.get("endpoint") == endpoint for event in events)


@pytest.mark.parametrize("whose", ["nobody's", "another deployment's"])
def test_a_disk_that_is_not_ours_stops_the_boot(whose: str, tmp_path: Path, disk: Path) -> None:
    """Something else than a state disk, or that of a deployment with another key, is not written over: the boot ends at
    its step, by name."""
    policy, model = _deployment(tmp_path, disk)
    if whose == "nobody's":
        disk.write_bytes(b"something else" * 300_000)
    else:
        StateDisk(disk, Secret(bytearray(range(32)))).close()
    before = disk.read_bytes()
    with pytest.raises(AssertionError, match=r"boot stopped at step state: .*neither slot opens"):
        Server(policy, [model], measured=False).wait_ready()
    assert before == disk.read_bytes()


class Clock:
    """A clock that a test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


RATES = Rates(requests_per_minute=10, tokens_per_minute=1000, tokens_per_day=20_000)
KEY = bytes.fromhex(sha256("key"))


def test_what_was_charged_weighs_on() -> None:
    """At no time after a restart may more be charged than without it, and all of it an eighth of a window later."""
    clock, later = Clock(), Clock()
    accounts, again = Accounts(RATES, clock), Accounts(RATES, later)
    for _ in range(8):
        accounts.of(KEY).admit_request()
        accounts.of(KEY).admit_tokens(100).settle(60)
        clock.now += 5
    data = quotas.snapshot(accounts)
    later.now = 5.0  # another boot, another clock
    quotas.restore(again, data, {KEY})
    for name, window in accounts.of(KEY).windows().items():
        restored, part = again.of(KEY).windows()[name], window._seconds / 8
        assert window.remaining == restored.remaining
        assert window.reset() - 1e-6 <= restored.reset() <= window.reset() + part
    assert data == quotas.snapshot(again)
    for _ in range(2000):
        clock.now += 50
        later.now += 50
        for name, window in accounts.of(KEY).windows().items():
            assert again.of(KEY).windows()[name].remaining <= window.remaining
    assert 20_000 == again.of(KEY).day.remaining


def test_keys_that_are_gone_are_forgotten() -> None:
    """A key that the policy no longer has leaves nothing behind; a limit that it no longer has weighs nothing."""
    accounts = Accounts(RATES)
    accounts.of(KEY).admit_request()
    data = quotas.snapshot(accounts)
    none, unlimited = Accounts(RATES), Accounts(Rates())
    quotas.restore(none, data, set())
    quotas.restore(unlimited, data, {KEY})
    assert [] == list(none)
    assert 0.0 == unlimited.of(KEY).requests.wait(10**9)


def test_quotas_of_tenants_outlive_the_appliance() -> None:
    """Of those that still have limits; without any tenant's the snapshot is of version 1."""
    acme, gone = (Tenant(name=name, api_key_sha256=(sha256(name),), tokens_per_day=1000) for name in ("acme", "gone"))
    accounts, again = Accounts(RATES), Accounts(RATES)
    assert b"quotas/v1" in quotas.snapshot(accounts)
    accounts.serve([acme, gone])
    for each in (acme, gone):
        accounts.purse(KEY, each).admit_tokens(100, 50)
    again.serve([acme])
    data = quotas.snapshot(accounts)
    assert {"acme", "gone"} == set(json.loads(data)["tenants"])
    quotas.restore(again, data, {KEY})
    assert (["acme"], 850) == (list(again.tenants), again.tenants["acme"].day.remaining)


def _many(count: int, keys: int = 1) -> list[Tenant]:
    return [Tenant(name=f"department-{each:05d}", tokens_per_minute=400_000, tokens_per_day=9_000_000,
                   api_key_sha256=tuple(sorted(sha256(f"{each}.{key}") for key in range(keys))))
            for each in range(count)]


def test_quotas_that_do_not_fit_weigh_longer() -> None:
    """Times are rounded more coarsely, so that a snapshot has its room: nothing is free earlier than it was."""
    clock, later, tenants = Clock(), Clock(), _many(12)
    accounts, again = Accounts(RATES, clock), Accounts(RATES, later)
    accounts.serve(tenants)
    again.serve(tenants)
    keys = [bytes.fromhex(each.api_key_sha256[0]) for each in tenants]
    for _ in range(8):
        for key, tenant in zip(keys, tenants, strict=True):
            accounts.purse(key, tenant).admit_tokens(100, 50)
        clock.now += 10_000
    most = len(quotas.snapshot(accounts)) * 2 // 3
    data = quotas.snapshot(accounts, most)
    assert most >= len(data)
    later.now = 5.0
    quotas.restore(again, data, keys)
    for _ in range(100):
        for tenant in tenants:
            assert again.tenants[tenant.name].day.remaining <= accounts.tenants[tenant.name].day.remaining
        clock.now += 1000
        later.now += 1000
    assert 9_000_000 == again.tenants["department-00000"].day.remaining


def test_quotas_that_can_never_fit_are_refused() -> None:
    """4096 tenants with limits fit, with a key each; with three keys they do not, and the error says how many."""
    quotas.require_room(Rates(60, 200_000, 5_000_000), _many(4096), MOST_QUOTAS)
    with pytest.raises(PolicyError, match=r"12288 API keys and of 4096 tenants .* at most 10\d{5}") as caught:
        quotas.require_room(Rates(60, 200_000, 5_000_000), _many(4096, 3), MOST_QUOTAS)
    assert "tenants-quotas" == caught.value.code


def test_a_list_that_forgets_accounts_hides_no_change() -> None:
    """The number of changes never returns to what it was, so that charges after a new list are written down."""
    stays, goes = _many(2)
    accounts = Accounts(Rates())
    accounts.serve([stays, goes])
    accounts.tenants[goes.name].admit_tokens(5)
    before = accounts.changes
    accounts.serve([stays])
    assert before < accounts.changes
    found = accounts.changes
    accounts.tenants[stays.name].admit_tokens(5)
    assert found < accounts.changes


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", b'{"format":"appliance/quotas/v2","accounts":{}}',
                                  b'{"format":"appliance/quotas/v1","accounts":[]}',
                                  b'{"accounts":{"00":{"day":[[1]]}},"format":"appliance/quotas/v1"}'])
def test_a_snapshot_that_is_none(data: bytes) -> None:
    """Another version's snapshot is an error, not an empty one."""
    with pytest.raises(StateError, match="snapshot"):
        quotas.restore(Accounts(RATES), data, {b"\0"})


@pytest.mark.slow
def test_an_auditor_reads_the_log_on_the_disk(tmp_path: Path, disk: Path) -> None:
    """All of it, over two boots, as a reader of the disk finds it; no other role does, and no log that is elsewhere."""
    policy, model = _deployment(tmp_path, disk)
    for _ in range(2):
        server = Server(policy, [model]).wait_ready()
        _ask(server)
        with server.http(AUDITOR_KEY) as auditor, server.http() as user:
            answer = auditor.get("/v1/audit/log")
            assert 403 == user.get("/v1/audit/log").status_code
            assert "application/jsonl" == answer.headers["content-type"].partition(";")[0]
            again = auditor.get("/v1/audit/log").content
        assert again.startswith(answer.content), "one reader after another"
        assert 0 == server.stop()
    lines = [frame.payload for frame in examine(disk, Secret(bytearray.fromhex(KEY_HEX)))[2] if frame.kind == 2]
    assert b"".join(lines).startswith(again)
    assert 2 == again.count(b'"event":"state.opened"')
    policy.write_text(policy.read_text().replace('sink = "state"', 'sink = "stdout"'))
    server = Server(policy, [model]).wait_ready()
    with server.http(AUDITOR_KEY) as auditor:
        assert 404 == auditor.get("/v1/audit/log").status_code
    server.stop()


@pytest.mark.slow
def test_the_log_is_read_as_the_page_says(tmp_path: Path, disk: Path) -> None:
    """The commands of `docs/concepts/state.md`, to the letter but for the port: through `connect`, with an auditor's
    key. `curl` at the appliance's own port gets 0 bytes, as the guides say."""
    policy, model = _deployment(tmp_path, disk)
    policy.write_text(policy.read_text().replace("schema = 1", "schema = 2").replace('kind = "tcp"', 'kind = "ra-tls"'))
    server = Server(policy, [model]).wait_ready()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "KEY": AUDITOR_KEY}
    connect = subprocess.Popen(
        [sys.executable, "-m", "appliance", "connect", server.url, "--policy", str(policy), "--accept", "simulated",
         "--json"], stderr=subprocess.PIPE, text=True)
    try:
        assert connect.stderr is not None
        here = next(said["listening"] for said in map(json.loads, connect.stderr) if said["event"] == "ready")
        page = [line.text for line in lines(ROOT / "docs/concepts/state.md")]
        ask, judge = (text for text in page if "audit.jsonl" in text)
        for text, code in ((ask.replace("http://127.0.0.1:9000", here), 0), (judge, 0),
                           (f"curl -s {server.url}/health > nothing", 60)):
            done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True,
                                  check=False)
            assert code == done.returncode, (text, done.stdout, done.stderr)
    finally:
        connect.terminate()
        connect.wait()
        server.stop()
    assert b"" == (tmp_path / "nothing").read_bytes()
    assert b'"event":"state.opened"' in (tmp_path / "audit.jsonl").read_bytes()
