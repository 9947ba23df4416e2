"""Counts for the operator, in Prometheus' text format, from a registry of our own.

Labels come from closed sets: our routes and codes, the policy's models and tenants. Token counts are the rounded
ones and durations those of the padded answers, so that a scrape tells no more than the wire does.
"""

from __future__ import annotations

import os

# Read at import by prometheus_client: it would write counters to files of the operator's choice.
for _name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
    os.environ.pop(_name, None)

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest  # noqa: E402

from appliance.service.exchange import Exchange  # noqa: E402
from appliance.service.privacy import bucket_us  # noqa: E402

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CONTENT_TYPE = "text/plain; version=0.0.4"  # the framework adds the charset


class Metrics:
    """All metrics of one service."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter("appliance_requests", "Requests answered, refusals included.",
                                 ["endpoint", "status"], registry=self.registry)
        self._refused = Counter("appliance_refusals", "Requests refused, by code.", ["code"], registry=self.registry)
        self._by_tenant = Counter("appliance_tenant_requests", "Requests of a tenant.", ["tenant"],
                                  registry=self.registry)
        self._tokens = Counter("appliance_tokens", "Tokens, rounded up for each request as the policy says.",
                               ["model", "kind"], registry=self.registry)
        self._seconds = Histogram("appliance_request_seconds", "From the request's head to the answer's last byte.",
                                  ["endpoint"], buckets=SECONDS, registry=self.registry)
        self._first = Histogram("appliance_first_token_seconds", "From the request's head to the first token's byte.",
                                ["model"], buckets=SECONDS, registry=self.registry)
        self.in_flight = Gauge("appliance_requests_in_flight", "Requests under way.", registry=self.registry)
        self.ready = Gauge("appliance_ready", "1 while requests are accepted.", registry=self.registry)

    def record(self, exchange: Exchange, seconds: float) -> None:
        """Count one finished request that took `seconds` on the wire."""
        self._requests.labels(exchange.endpoint, str(exchange.status)).inc()
        if exchange.code is not None:
            self._refused.labels(exchange.code).inc()
        if exchange.caller is not None:
            self._by_tenant.labels(exchange.caller.name).inc()
        self._seconds.labels(exchange.endpoint).observe(bucket_us(seconds, exchange.timing.total) / 1e6)
        if exchange.model is None:
            return
        self._tokens.labels(exchange.model, "prompt").inc(exchange.prompt_tokens or 0)
        self._tokens.labels(exchange.model, "completion").inc(exchange.completion_tokens or 0)
        if exchange.first_token is not None:
            first = bucket_us(exchange.first_token, exchange.timing.first_token) / 1e6
            self._first.labels(exchange.model).observe(first)

    def text(self) -> bytes:
        """The whole registry for a scrape."""
        return generate_latest(self.registry)
