"""The metrics that alerts need: of a live service, against its health, its log, its certificate and its answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from appliance import __version__
from appliance.service.admission.privacy import Timing
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.metrics import Metrics
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, TCP, Server, write_policy

LISTENERS = TCP + """
  listen "attested" {
    kind = "ra-tls"
    port = 8443
  }"""
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8,
                        "logit_bias": {str(token): -100 for token in range(3)}}  # no token ends it
QUOTA = 4000
Samples = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A service with an attested listener, checkpoints each second and a quota, which gave one answer."""
    policy = write_policy(
        tmp_path_factory.mktemp("metrics"), {"tiny": tiny_model}, schema=2, listeners=LISTENERS,
        limits=f"tokens_per_day = {QUOTA}", audit='checkpoint_interval = "1s"')
    server = Server(policy, [tiny_model])
    with server.wait_ready().http() as http:
        http.post("/v1/chat/completions", json=CHAT).raise_for_status()
    yield server
    server.stop()


def _samples(server: Server) -> Samples:
    """Each sample by its name and the values of its labels, as Prometheus' own parser reads them."""
    with server.http(AUDITOR_KEY) as http:
        text = http.get("/metrics").raise_for_status().text
    return {(sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def test_they_say_what_runs_since_when(running: Server) -> None:
    """Version, policy and platform are those of `/health`, and so is the generation. The start is within the test."""
    found = _samples(running)
    with running.http(None) as http:
        health = http.get("/health").json()
    assert 1 == found["appliance_info", health["platform"], health["policy_sha384"], __version__]
    assert health["generation"] == found["appliance_generation",]
    assert running.policy.stat().st_mtime <= found["process_start_time_seconds",] <= time.time()
    assert (1, 0) == (found["appliance_ready",], found["appliance_model_failed", "tiny"])


def test_a_certificates_end_is_that_of_the_listener(running: Server) -> None:
    """It is what the certificate says that a client is shown."""
    place, = (each for each in running.ready["listening"] if each.startswith("https:"))
    host, _, port = place.removeprefix("https://").rpartition(":")
    shown = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port)), timeout=60).encode())
    assert shown.not_valid_after_utc.timestamp() == _samples(running)[
        "appliance_certificate_end_timestamp_seconds", "attested"]


def test_the_age_of_the_last_checkpoint(running: Server) -> None:
    """It is as old as the newest record of one. No cosignature and no timestamp came, and none has a line."""
    name = ("appliance_audit_last_timestamp_seconds", "checkpoint", "")
    waiting.until(lambda: name in _samples(running), "first checkpoint")
    before, found, after = running.audit("audit.checkpoint"), _samples(running), time.time()
    assert {name} == {each for each in found if each[0] == name[0]}
    assert 0 <= after - found[name] < 60 * len(before)


def test_memory_by_part_is_what_the_boot_planned(running: Server) -> None:
    """Parts of models and parts of all add up to the plan, and no label has a number that another boot has not."""
    found = {each[1:]: value for each, value in _samples(running).items()
             if each[0] == "appliance_memory_planned_bytes"}
    assert {("", "process"), ("", "connections"), ("tiny", "resident weights"), ("tiny", "keys and values")} <= {*found}
    assert not any(character.isdigit() for each in found for character in each[1])
    assert found["tiny", "resident weights"] > 10_000


def test_a_quota_is_told_in_tenths(running: Server) -> None:
    """Of the tenant that asked: its tokens, rounded up to tenths of what it may have in a day."""
    found, usage = _samples(running), 0
    with running.http() as http:
        for row in http.get("/v1/usage").json()["data"]:
            usage += row["prompt_tokens"] + row["completion_tokens"]
    expected = -(-usage * 10 // QUOTA) / 10
    assert {("user", "day"): expected} == {
        each[1:]: value for each, value in found.items() if each[0] == "appliance_quota_used_ratio"}


def test_an_answers_times_add_up(running: Server) -> None:
    """The mean gap of the one answer is what is left of its time after the first token, over its other tokens."""
    found = _samples(running)
    whole, first, gap = (found[f"appliance_{name}_seconds_sum", "tiny"] for name in (
        "answer", "first_token", "token_gap"))
    assert 1 == found["appliance_token_gap_seconds_count", "tiny"] == found["appliance_answer_seconds_count", "tiny"]
    assert gap == pytest.approx((whole - first) / 7)


def test_gaps_are_of_rounded_tokens_and_padded_times() -> None:
    """So they tell no more than the other sums: 16 tokens in 400 ms, the first at the grid's 100 ms."""
    metrics, exchange = Metrics(), Exchange("/v1/completions", Timing(first_token=0.1, total=0.4))
    exchange.model, exchange.course.completion_tokens, exchange.course.first_token = "tiny", 16, 0.06
    exchange.entry.duration_us = 400_000
    metrics.record(exchange)
    found = {(sample.name, sample.labels.get("le")): sample.value
             for family in text_string_to_metric_families(metrics.text().decode()) for sample in family.samples}
    assert 0.3 / 15 == pytest.approx(found["appliance_token_gap_seconds_sum", None])
    assert 0.4 == pytest.approx(found["appliance_answer_seconds_sum", None])
    assert (0, 1) == tuple(found["appliance_token_gap_seconds_bucket", le] for le in ("0.01", "0.025"))


def test_readiness_is_that_of_health(tmp_path: Path, tiny_model: Path) -> None:
    """Where the audit log can no longer be written nothing is answered, and the metric says so."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model], audit_bytes=12_000).wait_ready()
    try:
        with server.http() as http:
            waiting.until(lambda: http.post("/v1/chat/completions", json=CHAT).status_code != 200, "full log")
            assert 503 == http.get("/health").status_code
        assert 0 == _samples(server)["appliance_ready",]
    finally:
        server.stop()
