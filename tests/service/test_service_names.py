"""Names and quotas as clients meet them: aliases of models, limits of a model, tenants with quotas and tiers, keys that
end, a key and a listener for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import tenant_lists
from tests.support.server import Server, no_roots, sha256, write_policy
from tests.support.tenant_lists import FILE

ADMIN, RICH, POOR, OLD, SCRAPER = "sk-admin", "sk-rich", "sk-poor", "sk-old", "sk-scraper"
LISTENERS = """listen "api" {
    kind   = "tcp"
    port   = 8080
    serves = "api"
  }
  listen "numbers" {
    kind   = "unix"
    path   = "%s"
    serves = "metrics"
  }"""
ALIASES = """
alias "gpt-4o" {
  models = ["later", "tiny"]
}
alias "later-only" {
  models = ["later"]
}
"""
MODEL_LIMITS = """load = "boot"
  limits {
    prompt_tokens      = 100
    generation_tokens  = 6
    max_tokens_default = 3
  }"""
TIERS = [{"name": "small", "requests_per_minute": 4, "tokens_per_day": 400, "answer_price": 10}]
ENDS = {sha256(OLD): "2020-01-01T00:00:00Z", sha256(POOR): "2099-01-01T00:00:00Z"}
TENANTS: dict[str, dict[str, Any]] = {
    "boss": {"keys": [ADMIN], "role": "admin", "models": ["later", "tiny"]},
    "numbers": {"keys": [SCRAPER], "role": "metrics", "models": []},
    "poor": {"keys": [POOR, OLD], "tier": "small", "expires": ENDS},
    "rich": {"keys": [RICH], "weight": 5},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server with two models of the same file, of which one comes on demand, and a list of version 3."""
    folder = tmp_path_factory.mktemp("names")
    policy = write_policy(folder, {"tiny": tiny_model, "later": tiny_model}, schema=2, model=MODEL_LIMITS,
                          limits="generation_tokens = 40", listeners=LISTENERS % (folder / "metrics.sock"))
    text = tenant_lists.with_authority(policy).read_text() + ALIASES
    at = text.index('load = "boot"', text.index('model "later"'))
    policy.write_text(text[:at] + 'load = "demand"' + text[at + len('load = "boot"'):])
    (folder / FILE).write_bytes(tenant_lists.signed(1, TENANTS, tiers=TIERS))
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _ask(server: Server, key: str, path: str = "/v1/completions", **asked: Any) -> httpx.Response:
    with server.http(key) as http:
        what = {"prompt": "abc"} if "messages" not in asked else {}
        return http.post(path, json={"model": "gpt-4o", "seed": 1, **what, **asked})


def _get(server: Server, path: str, key: str | None, *, metrics: bool = False) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    transport = httpx.HTTPTransport(uds=str(server.folder / "metrics.sock")) if metrics else None
    with httpx.Client(base_url="http://numbers" if metrics else server.url, headers=headers, transport=transport,
                      verify=no_roots(), timeout=60) as http:
        return http.get(path)


def _cards(server: Server, key: str) -> dict[str, str]:
    return {each["id"]: each["root"] for each in _get(server, "/v1/models", key).json()["data"]}


def test_an_alias_names_a_model_and_answers_name_the_model_itself(server: Server) -> None:
    """It is listed with the model that it stands for; the record has the model. An alias without a loaded model is
    refused, and one of models that the tenant may not ask is not there."""
    assert {"tiny": "tiny", "gpt-4o": "tiny"} == _cards(server, RICH)
    assert "tiny" == _get(server, "/v1/models/gpt-4o", RICH).json()["root"]
    by_alias, by_name = _ask(server, RICH).json(), _ask(server, RICH, model="tiny").json()
    assert ("tiny", by_name["choices"]) == (by_alias["model"], by_alias["choices"])
    chat = _ask(server, RICH, "/v1/chat/completions", messages=[{"role": "user", "content": "abc"}])
    assert "tiny" == chat.json()["model"]
    assert "tiny" == server.audited(chat.headers["x-request-id"])["model"]
    for key, code in ((ADMIN, "model_not_loaded"), (RICH, "model_not_found")):
        assert (404, code) == (
            (refused := _ask(server, key, model="later-only")).status_code, refused.json()["error"]["code"])


def test_an_alias_goes_to_the_model_that_was_loaded(server: Server) -> None:
    """For those who may ask it; nobody else notices."""
    with server.http(ADMIN) as http:
        assert 200 == http.post("/v1/admin/models", json={"load": "later"}).status_code
        assert ("later", "tiny") == (_ask(server, ADMIN).json()["model"], _ask(server, RICH).json()["model"])
        assert {"gpt-4o": "later", "later-only": "later"}.items() <= _cards(server, ADMIN).items()
        assert 200 == http.post("/v1/admin/models", json={"unload": "later"}).status_code
    assert "tiny" == _ask(server, ADMIN).json()["model"]


def test_a_model_has_limits_and_a_default_of_its_own(server: Server) -> None:
    """Below those of all: its card has them, longer answers are clamped, longer prompts refused."""
    card = _get(server, "/v1/models/tiny", RICH).json()
    assert (100, 6) == (card["max_prompt_tokens"], card["max_completion_tokens"])
    usual, clamped = _ask(server, RICH), _ask(server, RICH, max_tokens=30)
    assert usual.json()["usage"]["completion_tokens"] <= 3
    assert "6" == clamped.headers["x-max-tokens-clamped-to"]
    refused = _ask(server, RICH, prompt=list(range(5, 60)) * 2)
    assert (400, "context_length_exceeded") == (refused.status_code, refused.json()["error"]["code"])


def test_a_key_that_ended_is_refused_with_its_own_code(server: Server) -> None:
    """Whatever it asks for; the tenant's other key is good, and its end is a metric."""
    refused = _ask(server, OLD)
    assert (401, "api_key_expired", "Bearer") == (
        refused.status_code, refused.json()["error"]["code"], refused.headers["www-authenticate"])
    end = int(datetime(2099, 1, 1, tzinfo=UTC).timestamp())
    told = _get(server, "/metrics", SCRAPER, metrics=True).text
    line = next(each for each in told.splitlines() if each.startswith("appliance_api_key_end_timestamp_seconds{"))
    assert end == float(line.split()[-1])


def test_a_tier_bounds_a_tenant(server: Server) -> None:
    """Headers tell of its requests, and the price of its answers counts; another tenant is not bounded."""
    first = _ask(server, POOR, max_tokens=1)
    assert ("4", "3") == (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"])
    assert "x-ratelimit-limit-requests" not in _ask(server, RICH).headers
    for _ in range(3):
        assert 200 == _ask(server, POOR, max_tokens=1).status_code
    refused = _ask(server, POOR, max_tokens=1)
    assert (429, "rate_limit_exceeded") == (refused.status_code, refused.json()["error"]["code"])
    assert "of the tenant" in refused.json()["error"]["message"]
    told = _get(server, "/metrics", SCRAPER, metrics=True).text
    assert 'appliance_quota_used_ratio{tenant="poor",window="requests"} 1.0' in told


def test_a_key_for_metrics_reads_nothing_else(server: Server) -> None:
    """Neither models, usage, log nor changes; and an auditor's endpoints are closed to it."""
    assert 200 == _get(server, "/metrics", SCRAPER, metrics=True).status_code
    assert 403 == _ask(server, SCRAPER).status_code
    for path in ("/v1/models", "/v1/usage", "/v1/audit/checkpoint", "/v1/audit/log", "/v1/admin/models",
                 "/tokenizer_info"):
        assert 403 == _get(server, path, SCRAPER).status_code, path
    assert 403 == _get(server, "/metrics", RICH, metrics=True).status_code


def test_a_listener_for_metrics_serves_nothing_else(server: Server) -> None:
    """But what a client needs to verify it; the API's own listener has no metrics."""
    for path in ("/v1/models", "/v1/usage", "/", "/openapi.json", "/v1/audit/log"):
        refused = _get(server, path, ADMIN, metrics=True)
        assert (404, "not_found") == (refused.status_code, refused.json()["error"]["code"]), path
    assert 200 == _get(server, "/health", None, metrics=True).status_code
    assert 200 == _get(server, f"/v1/attestation?nonce={'ab' * 32}", None, metrics=True).status_code
    assert 404 == _get(server, "/metrics", ADMIN).status_code
