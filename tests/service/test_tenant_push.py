"""A newer list of tenants in a running service: revoked keys end, others do not notice, evidence and log tell."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.api import marks
from appliance.attestation.case.reading import parse_statement
from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.policy import load
from appliance.service.loading.tenant_lists import most_marks
from appliance.signed import desk
from appliance.signed import tenants as tenantlist
from tests.support import synthetic, tenant_lists, waiting
from tests.support.server import TCP, Server, sha256, write_policy
from tests.support.tenant_lists import FILE, signed

PATH = "/v1/admin/tenants"
ADMIN, STAYS, SPARE, GOES, COMES = "sk-admin", "sk-stays", "sk-stays-spare", "sk-goes", "sk-comes"
LONG = 600  # tokens of an answer under which a list is replaced
BOSS = {"keys": [ADMIN], "role": "admin"}
BOTH: dict[str, dict[str, Any]] = {"boss": BOSS, "goes": {"keys": [GOES]}, "stays": {"keys": [STAYS, SPARE]}}
WITHOUT: dict[str, dict[str, Any]] = {"boss": BOSS, "comes": {"keys": [COMES]}, "stays": {"keys": [STAYS]}}
LIMITS = "generation_tokens = 1500\n  concurrent_requests = 16\n  choices = 16"
CACHE = 'prefix_cache {\n    size = "1MiB"\n  }'


@contextlib.contextmanager
def _serving(folder: Path, version: int = 1, *, more: str = "", schema: int = 2, limits: str = LIMITS,
             listeners: str = TCP) -> Iterator[Server]:
    """A server with the first list, outside of measured coverage, so that it is in its sandbox."""
    model = folder / "tiny.gguf"
    if not model.exists():
        model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 2048))
    policy = write_policy(folder, {"tiny": model}, schema=schema, limits=limits, listeners=listeners,
                          model=CACHE if schema > 1 else "")
    tenant_lists.with_authority(policy).write_text(policy.read_text() + more)
    (folder / FILE).write_bytes(signed(version, BOTH))
    server = Server(policy, [model], measured=False).wait_ready()
    try:
        yield server
    finally:
        assert 0 == server.stop()


def _push(server: Server, data: bytes, key: str | None = ADMIN) -> httpx.Response:
    with server.http(key) as http:
        return http.post(PATH, content=data, headers={"content-type": "application/json"})


def _ask(server: Server, key: str, **asked: Any) -> httpx.Response:
    with server.http(key) as http:
        return http.post("/v1/completions", json={"model": "tiny", "prompt": "once", "max_tokens": 2, **asked})


def _stream(server: Server, key: str, seed: int, began: threading.Event) -> tuple[str, dict[str, Any] | None]:
    """A stream's text, and the error that it ended with, if it did; `began` is set at its first event."""
    said, error = "", None
    with server.http(key) as http, http.stream("POST", "/v1/completions", json={
            "model": "tiny", "prompt": "once", "max_tokens": LONG, "temperature": 1.0, "seed": seed, "stream": True,
            "logit_bias": {"2": -100}}) as answer:
        assert 200 == answer.status_code
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                error = event.get("error", error)
                said += "".join(each["text"] for each in event.get("choices", []))
                began.set()
    return said, error


@contextlib.contextmanager
def _streams(server: Server, keys: list[str]) -> Iterator[list[concurrent.futures.Future[Any]]]:
    """A long answer for each key at once, each of which has begun."""
    with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
        began = [threading.Event() for _ in keys]
        found = [pool.submit(_stream, server, key, seed, event)
                 for seed, (key, event) in enumerate(zip(keys, began, strict=True))]
        waiting.until(lambda: all(event.is_set() for event in began), "answers that have begun",
                      lambda: waiting.processor_time(server.process.pid))
        yield found


def _generation(server: Server, path: Path) -> int:
    """The generation in evidence that our verifier accepts, as of a simulated platform: exit code 5."""
    assert 5 == main(["verify", server.url, "--policy", str(server.policy), "--save", str(path)])
    return parse_statement(json.loads(path.read_text())["statement"]).generation


@pytest.mark.slow
def test_a_key_is_revoked_under_eight_streams(tmp_path: Path) -> None:
    """The streams of its tenant end with an error, the others' texts are the same to the byte; evidence and the log
    have a new generation, and the keys of the newer list are those that are valid."""
    with _serving(tmp_path) as server:
        with _streams(server, [STAYS] * 4) as running:
            plain = [each.result() for each in running]
        assert all(error is None for _, error in plain)
        before = _generation(server, tmp_path / "before.json")
        assert 401 == _ask(server, COMES).status_code
        with _streams(server, [STAYS] * 4 + [GOES] * 4) as running:
            told = _push(server, signed(2, WITHOUT))
            assert 200 == told.status_code, told.text
            ended = [each.result() for each in running]
        assert plain == ended[:4]
        assert ["invalid_api_key"] * 4 == [error and error["code"] for _, error in ended[4:]]
        assert {"object": "tenant_list", "version": 2, "tenants": 3, "revoked_keys": 2,
                "generation": before + 1} == told.json()
        assert before + 1 == _generation(server, tmp_path / "after.json")
        assert [401, 401, 200, 200] == [_ask(server, key).status_code for key in (GOES, SPARE, STAYS, COMES)]
        record = server.audit("tenants.replaced")[0]
        assert (3, 2, 2, before + 1, "boss", told.headers["x-request-id"]) == tuple(
            record[name] for name in ("tenants", "list_version", "revoked", "generation", "tenant", "request"))
        refused = [each for each in server.audit("request.refused") if each["tenant"] == "goes"]
        assert [("invalid_api_key", True)] * 4 == [(each["code"], each["streamed"]) for each in refused]
        with server.http(ADMIN) as http:
            text = http.get("/metrics").text
        assert 'appliance_tenant_requests_waiting{tenant="comes"}' in text
        assert 'appliance_tenant_requests_waiting{tenant="goes"}' not in text


OTHERS = [
    (signed(1, WITHOUT), ADMIN, 409, "tenant_list_older", "version 1, and version 1 is in force; sign it as version 2"),
    (signed(0, WITHOUT), ADMIN, 409, "tenant_list_older", "version 0, the policy accepts 1 and later"),
    (signed(2, WITHOUT, key=Ed25519PrivateKey.generate()), ADMIN, 400, "tenant_list_refused", "not signed by ed25519:"),
    (signed(2, WITHOUT, appliance="another"), ADMIN, 400, "tenant_list_refused", "for 'another', this is 'test'"),
    (signed(2, {"boss": BOSS | {"models": ["none"]}}), ADMIN, 400, "tenant_list_refused", 'there is no model "none"'),
    (b"{}", ADMIN, 400, "tenant_list_refused", "expected an object with format, list, signature"),
    (b'{"list":[' + b"[]," * 300_000 + b"[]]}", ADMIN, 400, "tenant_list_refused", "the body has too many values"),
    (signed(2, WITHOUT), STAYS, 403, "permission_denied", ""),
    (signed(2, WITHOUT), COMES, 401, "invalid_api_key", ""),
    (signed(2, WITHOUT), None, 401, "invalid_api_key", ""),
    (b" " * (1 << 20) + signed(2, WITHOUT), ADMIN, 413, "body_too_large", "1048576 bytes"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose list is not replaced."""
    with _serving(tmp_path_factory.mktemp("lists")) as server:
        yield server


@pytest.mark.parametrize(("data", "key", "status", "code", "words"), OTHERS, ids=map(str, range(len(OTHERS))))
def test_a_list_that_is_not_accepted_changes_nothing(served: Server, data: bytes, key: str | None, status: int,
                                                     code: str, words: str) -> None:
    """Older, another's, for another deployment, or from somebody who is no admin: each refusal says why."""
    with served.http() as http:
        before = http.get("/health").json()["generation"]
    refused = _push(served, data, key)
    assert (status, code) == (refused.status_code, refused.json()["error"]["code"]), refused.text
    assert words in refused.json()["error"]["message"]
    with served.http() as http:
        assert before == http.get("/health").json()["generation"]
    assert [200, 401] == [_ask(served, each).status_code for each in (GOES, COMES)]
    assert [] == served.audit("tenants.replaced")


def test_requests_that_wait_and_whole_answers_end(tmp_path: Path) -> None:
    """A revoked key's request that waits for its turn is refused, as is one whose answer is not streamed. A tenant that
    loses a model loses its answers by it."""
    with _serving(tmp_path, limits="generation_tokens = 1500\n  concurrent_requests = 2\n  choices = 2") as server, \
            concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = {"max_tokens": 1400, "logit_bias": {"2": -100}, "prompt": "a"}
        running = [pool.submit(_ask, server, key, **asked) for key in (GOES, SPARE, GOES, STAYS)]
        waiting.until(lambda: 'appliance_requests_in_flight 5' in _metrics(server), "four requests under way",
                      lambda: waiting.processor_time(server.process.pid))
        assert 200 == _push(server, signed(2, WITHOUT | {"stays": {"keys": [STAYS], "models": []}})).status_code
        codes = [(each.result().status_code, each.result().json()["error"]["code"]) for each in running]
        assert [(401, "invalid_api_key")] * 3 + [(404, "model_not_found")] == codes
        assert 200 == _ask(server, COMES).status_code


def test_a_request_that_no_longer_fits_ends(tmp_path: Path) -> None:
    """One that waits for more places than its tenant may have by the newer list is told to come again."""
    with _serving(tmp_path, limits="generation_tokens = 1500\n  concurrent_requests = 2\n  choices = 2") as server, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = {"max_tokens": 1400, "logit_bias": {"2": -100}, "prompt": "a"}
        with _streams(server, [GOES]) as running:
            two = pool.submit(_ask, server, STAYS, n=2, **asked)
            waiting.until(lambda: 'appliance_requests_in_flight 3' in _metrics(server), "two requests under way",
                          lambda: waiting.processor_time(server.process.pid))
            narrow = BOTH | {"stays": BOTH["stays"] | {"weight": 1, "concurrent_requests": 1, "context_length": None}}
            assert 200 == _push(server, signed(2, narrow)).status_code
            assert (503, "overloaded") == (two.result().status_code, two.result().json()["error"]["code"])
            assert running[0].result()[1] is None


def _metrics(server: Server) -> str:
    with server.http(ADMIN) as http:
        return http.get("/metrics").text


@pytest.mark.parametrize("keys", [1, 12])
def test_the_longest_list_is_not_too_many_values(keys: int, tmp_path: Path, tiny_model: Path) -> None:
    """As many tenants as a list may have, each with every member and every model, and as many keys as 4 MiB take."""
    policy = load(write_policy(tmp_path, {"a": tiny_model, "b": tiny_model}, schema=2)).policy
    row = {"role": "user", "models": ["a", "b"], "weight": 2, "concurrent_requests": 1, "context_length": 64}
    rows = [{**row, "name": f"t{number:04}", "api_key_sha256": [sha256(f"{number} {key}") for key in range(keys)]}
            for number in range(tenantlist.MAX_TENANTS)]
    data = desk.sign_tenants({"appliance": "test", "version": 1, "tenants": rows}, tenant_lists.AUTHORITY)
    assert len(data) <= tenantlist.MAX_BYTES
    most = most_marks(policy, len(data))
    assert marks.count(data, most) <= most


def test_most_marks_of_a_list_with_tiers_and_ends() -> None:
    """The largest list of version 3, whose keys all end, is within the bound."""
    form, end = tenantlist.VERSIONS[2], "2027-01-31T00:00:00Z"
    rows = [{"name": f"t{number:05d}", "role": "user", "models": ["m"], "api_key_sha256": [sha256(str(number))],
             **form.more, "tier": "gold", "expires": {sha256(str(number)): end}} for number in range(4096)]
    listed = {"appliance": "test", "version": 3, "tenants": rows, "tiers": [{"name": "gold", **tenantlist.TIER}]}
    assert 4096 == len(tenantlist.check(listed, form).tenants)
    data = canonical({"format": form.name, "list": listed, "signature": "x" * 136})
    most = most_marks(SimpleNamespace(models=["m"]), len(data))  # type: ignore[arg-type]
    assert marks.count(data, 10**9) <= most


def test_a_slow_list_keeps_no_other_key_out(tmp_path: Path) -> None:
    """A key has one list on its way at a time; another admin's is taken meanwhile, and revokes the slow one's key."""
    second = {"keys": ["sk-second"], "role": "admin"}
    with _serving(tmp_path) as server:
        assert 200 == _push(server, signed(2, BOTH | {"second": second})).status_code
        host, _, port = server.url.removeprefix("http://").partition(":")
        data = signed(9, WITHOUT)
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(f"POST {PATH} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {ADMIN}\r\n"
                         f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data[:9])
            waiting.until(lambda: 429 == _push(server, b"{}").status_code, "a list that is on its way")
            assert 200 == _push(server, signed(3, {"second": second}), "sk-second").status_code
            slow.sendall(data[9:])
            assert b" 401 " in slow.recv(4096).splitlines()[0]
        assert [3] == [each["list_version"] for each in server.audit("tenants.replaced")][1:]


def test_lists_follow_each_other(tmp_path: Path) -> None:
    """Each must be newer than the last that was taken; a tenant that comes back is served; the log names each."""
    with _serving(tmp_path, version=5) as server:
        assert [200, 409, 200, 409] == [_push(server, signed(version, tenants)).status_code for version, tenants in (
            (7, WITHOUT), (6, BOTH), (8, BOTH), (8, BOTH))]
        assert [401, 200] == [_ask(server, key).status_code for key in (COMES, GOES)]
        told = server.audit("tenants.replaced")
        assert [(7, 2), (8, 1)] == [(each["list_version"], each["revoked"]) for each in told]
        assert [5] == [each["list_version"] for each in server.audit("tenants.loaded")]


def test_under_schema_1(tmp_path: Path) -> None:
    """Its log has the generation."""
    with _serving(tmp_path, schema=1, limits="") as server:
        told = _push(server, signed(2, WITHOUT))
        assert 200 == told.status_code, told.text
        assert [401, 200] == [_ask(server, key).status_code for key in (GOES, COMES)]
        assert [told.json()["generation"]] == [each["generation"] for each in server.audit("generation.new")]


def test_tenants_in_the_policy_give_way_to_no_list(tmp_path: Path, tiny_model: Path) -> None:
    """Nobody signs for them."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=2)
    server = Server(policy, [tiny_model], measured=False).wait_ready()
    try:
        refused = _push(server, signed(2, WITHOUT), "sk-test-other")
        assert (400, "tenant_list_refused") == (refused.status_code, refused.json()["error"]["code"])
        assert "the policy pins no authority" in refused.json()["error"]["message"]
    finally:
        assert 0 == server.stop()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It verifies the appliance, checks the list, then shows the key; what the appliance refuses ends with 1."""
    newer = tmp_path / "newer.json"
    newer.write_bytes(signed(2, WITHOUT))
    with _serving(tmp_path) as server:
        words = ["tenants", "push", server.url, str(newer), "--policy", str(server.policy)]
        monkeypatch.delenv("APPLIANCE_API_KEY", raising=False)
        assert 2 == main([*words, "--accept", "simulated"])
        assert "APPLIANCE_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("APPLIANCE_API_KEY", ADMIN)
        assert 5 == main([*words, "--json"])
        assert 5 == json.loads(capsys.readouterr().out)["exit_code"]
        assert 0 == main([*words, "--accept", "simulated"])
        assert "version 2 is in force: 3 tenants, keys revoked: 2, generation 2" in capsys.readouterr().out
        assert 1 == main([*words, "--accept", "simulated"])
        assert "error[tenant_list_older]: tenant list: version 2, and version 2 is in force" in capsys.readouterr().err
        newer.write_bytes(signed(3, WITHOUT, appliance="another"))
        assert 2 == main([*words, "--accept", "simulated"])
        assert f"error[tenants-other]: {newer}: tenant list: for 'another'" in capsys.readouterr().err
        assert 2 == main(["tenants", "push", server.url, str(newer), "--key", str(newer)])
        assert "--policy FILE" in capsys.readouterr().err
    assert 2 == main(["tenants", "push", "somewhere", "--policy", str(newer)])
    assert "error[usage]: FILE, or push URL FILE" in capsys.readouterr().err


ATTESTED = """listen "attested" {
    kind = "ra-tls"
    port = 8443
  }
  listen "plain" {
    kind = "tcp"
    port = 8080
  }"""


def test_new_connections_have_evidence_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list that is pushed over RA-TLS: the listener's next certificate has evidence of it, by another key."""
    newer, key = tmp_path / "newer.json", tmp_path / "key"
    newer.write_bytes(signed(2, WITHOUT))
    key.write_text(ADMIN)
    with _serving(tmp_path, listeners=ATTESTED) as server:
        attested = next(str(url) for url in server.ready["listening"] if str(url).startswith("https"))

        def verified() -> dict[str, Any]:
            assert 5 == main(["verify", attested, "--policy", str(server.policy), "--save", str(tmp_path / "saved")])
            capsys.readouterr()
            found: dict[str, Any] = json.loads((tmp_path / "saved").read_text())["statement"]
            return found

        before = verified()
        assert 0 == main(["tenants", "push", attested, str(newer), "--policy", str(server.policy), "--accept",
                          "simulated", "--api-key-file", str(key), "--json"])
        told = json.loads(capsys.readouterr().out)
        after = verified()
        assert before["generation"] < after["generation"] == told["generation"]
        assert before["tls_spki_sha256"] != after["tls_spki_sha256"]


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk in memory: the policy names devices below /dev."""
    path = Path(f"/dev/shm/appliance-lists-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, 4 << 20)
    yield path
    path.unlink()


STATE = 'state {{\n  device = "{}"\n  key {{\n    provider = "file"\n    path = "{}"\n  }}\n}}\n'


def test_an_older_list_is_refused_at_the_next_boot(tmp_path: Path, disk: Path) -> None:
    """The state disk knows the version of the last list, also after a kill: a boot with an older one stops, and names
    both; the list that was taken boots."""
    key = tmp_path / "state.key"
    key.write_text("3d" * 32)
    key.chmod(0o600)
    more = STATE.format(disk, key)
    with _serving(tmp_path, more=more) as server:
        assert 200 == _push(server, signed(2, WITHOUT)).status_code
    older = "boot stopped at step state: tenant list: version 1, and version 2 was in force here"
    with pytest.raises(AssertionError, match=older), _serving(tmp_path, more=more):
        pass
    (tmp_path / FILE).write_bytes(signed(2, WITHOUT))
    model, policy = tmp_path / "tiny.gguf", tmp_path / "policy.hcl"
    server = Server(policy, [model], measured=False).wait_ready()
    assert [401, 200] == [_ask(server, each).status_code for each in (GOES, COMES)]
    assert 200 == _push(server, signed(3, WITHOUT)).status_code
    server.process.kill()
    server.process.wait()
    with pytest.raises(AssertionError, match="version 2, and version 3 was in force here"):
        Server(policy, [model], measured=False).wait_ready()
    (tmp_path / FILE).write_bytes(signed(3, WITHOUT))
    server = Server(policy, [model], measured=False).wait_ready()
    assert 0 == server.stop()


def test_a_signed_list_is_what_the_document_says(served: Server) -> None:
    """The members in the OpenAPI document are those of the file."""
    with served.http(None) as http:
        described = http.get("/openapi.json").json()
    schema = described["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    members = described["components"]["schemas"][schema.rpartition("/")[2]]["properties"]
    assert set(json.loads(signed(2, WITHOUT))) == set(members)
    assert tenantlist.MAX_BYTES == 4 << 20
