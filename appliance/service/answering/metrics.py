"""Counts for the operator, in Prometheus' text format, from a registry of our own.

Labels come from closed sets: our routes and codes, the policy's models and tenants. Token counts
are the rounded ones, counted when an answer has left; durations and loads are those of the padded
answers. So a scrape tells no more than the wire does. How full a sequence's place in the cache is,
is not told: it grows as an answer does. Nor are the pages that are kept of earlier texts: a text
that is found takes no new ones. Hits have noise (`counting.hits`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

# Read at import by prometheus_client: it would write counters to files of the operator's choice.
for _name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
    os.environ.pop(_name, None)

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest  # noqa: E402

from appliance.service.admission.privacy import bucket_us  # noqa: E402
from appliance.service.answering.exchange import Exchange  # noqa: E402
from appliance.service.counting.claims import Claims  # noqa: E402
from appliance.service.counting.hits import Hits  # noqa: E402
from appliance.state.room import STATES  # noqa: E402

if TYPE_CHECKING:
    from appliance.service.answering.context import ServedModel, Service

RATE_SECONDS, RECENT = 60.0, 4096  # over which tokens per second are told; requests of which they are remembered
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
KINDS = ("prompt", "completion")
GAUGES = (  # of each model
    ("appliance_requests_waiting", "Requests that wait for a model.", ["model"]),
    ("appliance_cache_slots_used", "Sequences in a model's cache: requests that it works on.", ["model"]),
    ("appliance_cache_slots", "Sequences that a model's cache has room for.", ["model"]),
    ("appliance_cache_pages", "Pages of keys and values for answers in progress.", ["model"]),
    ("appliance_cache_pages_claimed", "Pages that requests in progress may take, by rounded lengths.", ["model"]),
    ("appliance_prefix_pages", "Pages for earlier texts, of all tenants together.", ["model"]),
    ("appliance_prefix_hits", "Requests of the last whole five minutes that found a part of their prompt, with noise, "
     "in steps of ten.", ["model"]),
    ("appliance_tokens_per_second", "Of requests that ended in the last minute, as appliance_tokens_total.",
     ["model", "kind"]))
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
        self._seconds = Histogram("appliance_request_seconds", "From the request's head until its answer may end.",
                                  ["endpoint"], buckets=SECONDS, registry=self.registry)
        self._first = Histogram("appliance_first_token_seconds", "From the request's head to the first token's byte.",
                                ["model"], buckets=SECONDS, registry=self.registry)
        self.in_flight = Gauge("appliance_requests_in_flight", "Requests under way.", registry=self.registry)
        self._generated: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self.ready = Gauge("appliance_ready", "1 while requests are accepted.", registry=self.registry)
        self._queue = Histogram("appliance_queue_seconds", "From the request's head until the model began with it.",
                                ["model"], buckets=SECONDS, registry=self.registry)
        self.claims = Claims()
        self._hits = dict[str, Hits]()  # of models that keep prefixes
        self._gauges: list[Gauge] = []
        self._of_tenants: list[tuple[Gauge, Callable[[str], int]]] = []
        self._askers: frozenset[str] = frozenset()  # of whom these tell

    def record(self, exchange: Exchange) -> None:
        """Count one request that was recorded."""
        self._requests.labels(exchange.endpoint, str(exchange.status)).inc()
        if exchange.code is not None:
            self._refused.labels(exchange.code).inc()
        if exchange.caller is not None:
            self._by_tenant.labels(exchange.caller.name).inc()
        self._seconds.labels(exchange.endpoint).observe(exchange.duration_us / 1e6)
        if exchange.model is None:
            return
        for kind, tokens in (("prompt", exchange.prompt_tokens), ("completion", exchange.completion_tokens)):
            self._tokens.labels(exchange.model, kind).inc(tokens or 0)
            if tokens:
                self._recent(exchange.model, kind).append((time.monotonic(), tokens))
        if exchange.cached_tokens and exchange.model in self._hits:
            self._hits[exchange.model].add()
        if exchange.began is not None:
            self._queue.labels(exchange.model).observe(bucket_us(exchange.began, exchange.timing.first_token) / 1e6)
        if exchange.first_token is not None:
            first = bucket_us(exchange.first_token, exchange.timing.first_token) / 1e6
            self._first.labels(exchange.model).observe(first)

    def watch(self, service: Service) -> None:
        """Add what is asked for at each scrape: the load of each model."""
        self._gauges = [Gauge(name, words, labels, registry=self.registry) for name, words, labels in GAUGES]
        for model in service.models.values():
            self.watch_model(service, model)
        self._of_tenants = [(Gauge("appliance_constraints_waiting", "Requests of a tenant whose answers' structure "
                                   "waits to be compiled.", ["tenant"], registry=self.registry),
                             service.constraints.waiting_of)]
        if service.room is not None:
            self._watch_room(service)
        if service.queue is not None:
            self._of_tenants.append((Gauge("appliance_tenant_requests_waiting", "Requests of a tenant that wait for a "
                                           "place.", ["tenant"], registry=self.registry),
                                     service.queue.answers.waiting_of))
        self.watch_tenants(service)

    def watch_tenants(self, service: Service) -> None:
        """Tell of the tenants who may ask now, and of no others."""
        before, self._askers = self._askers, service.tenants.askers
        for gauge, waiting in self._of_tenants:
            for tenant in before - self._askers:
                gauge.remove(tenant)
            for tenant in sorted(self._askers - before):
                gauge.labels(tenant).set_function(partial(waiting, tenant))

    def _watch_room(self, service: Service) -> None:
        """Add the audit log's room on the state disk."""
        Gauge("appliance_state_free_bytes", "Bytes left for the audit log on the state disk.",
              registry=self.registry).set_function(lambda: service.room.free if service.room else 0)
        state = Gauge("appliance_state_room", "1 for the state that the audit log's room on the state disk is in.",
                      ["room"], registry=self.registry)
        for name in STATES:
            state.labels(name).set_function(partial(_in_state, service, name))

    def watch_model(self, service: Service, model: ServedModel) -> None:
        """Add the load and the pages of a model that takes requests now."""
        name, engine = model.name, model.running.engine
        waiting, running, slots, pages, claimed, prefixes, hits, rate = self._gauges
        waiting.labels(name).set_function(partial(_queued, service, model))
        running.labels(name).set_function(partial(_running, service, model))
        slots.labels(name).set(model.slots)
        pages.labels(name).set(engine.pages)
        claimed.labels(name).set_function(partial(self.claims.of, name))
        prefixes.labels(name).set(engine.prefix_pages)
        if engine.keeps_prefixes:
            self._hits[name] = Hits()
            hits.labels(name).set_function(partial(_told, self._hits[name]))
        for kind in KINDS:
            rate.labels(name, kind).set_function(partial(self.per_second, name, kind))

    def forget_model(self, name: str) -> None:
        """Take away what belongs to a model that is no longer there. Its counts stay."""
        *of_model, rate = self._gauges
        for gauge in of_model:
            with contextlib.suppress(KeyError):
                gauge.remove(name)
        for kind in KINDS:
            with contextlib.suppress(KeyError):
                rate.remove(name, kind)
        self._hits.pop(name, None)

    def _recent(self, model: str, kind: str) -> deque[tuple[float, int]]:
        """When which tokens were counted: those of the last minute, and of the last requests at
        most."""
        recent = self._generated.setdefault((model, kind), deque(maxlen=RECENT))
        while recent and recent[0][0] < time.monotonic() - RATE_SECONDS:
            recent.popleft()
        return recent

    def per_second(self, model: str, kind: str) -> float:
        """Tokens of requests that ended in the last minute, for a second of it."""
        return sum(tokens for _, tokens in self._recent(model, kind)) / RATE_SECONDS

    def text(self) -> bytes:
        """The whole registry for a scrape."""
        return generate_latest(self.registry)


def _told(hits: Hits) -> int:
    return hits.told


def _in_state(service: Service, state: str) -> int:
    return int(service.room is not None and service.room.state == state)


def _queued(service: Service, model: ServedModel) -> int:
    return service.load_of(model).queued


def _running(service: Service, model: ServedModel) -> int:
    return service.load_of(model).running
