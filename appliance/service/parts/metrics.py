"""Counts for the operator, in Prometheus' text format, from a registry of our own.

Labels come from closed sets: our routes and codes, the policy's models and tenants. Token counts
are the rounded ones, counted when an answer has left; durations and loads are those of the padded
answers. So a scrape tells no more than the wire does. How full a sequence's place in the cache is,
is not reported: it grows as an answer does. Nor are the pages that are kept of earlier texts: a
text that is found takes no new ones. Hits have noise (`counting.hits`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial

# Read at import by prometheus_client: it would write counters to files of the operator's choice.
for _name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
    os.environ.pop(_name, None)

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest  # noqa: E402

from appliance.service.admission.privacy import bucket_us  # noqa: E402
from appliance.service.counting.claims import Claims  # noqa: E402
from appliance.service.counting.hits import Hits  # noqa: E402
from appliance.service.parts.exchange import Exchange  # noqa: E402
from appliance.service.parts.models import ServedModel  # noqa: E402
from appliance.service.parts.readiness import Readiness  # noqa: E402
from appliance.service.parts.traffic import Traffic  # noqa: E402
from appliance.state.room import STATES  # noqa: E402

RATE_SECONDS, RECENT = 60.0, 4096  # over which tokens per second are reported; requests of which they are remembered
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
GAPS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
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
    ("appliance_late_passes", "Passes that ended after their interval, since a model with a cadence was loaded.",
     ["model"]),
    ("appliance_late_seconds_max", "By which the latest of them ended after its interval, rounded up to intervals.",
     ["model"]),
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
        self._whole = Histogram("appliance_answer_seconds", "From the request's head until its answer may end, of "
                                "requests that have one.", ["model"], buckets=SECONDS, registry=self.registry)
        self._gaps = Histogram("appliance_token_gap_seconds", "Mean time from one token of an answer to the next, by "
                               "its rounded tokens.", ["model"], buckets=GAPS, registry=self.registry)
        self.claims = Claims()
        self._hits = dict[str, Hits]()  # of models that keep prefixes
        self._gauges = [Gauge(name, words, labels, registry=self.registry) for name, words, labels in GAUGES]
        self._of_tenants: list[tuple[Gauge, Callable[[str], int]]] = []
        self._askers: frozenset[str] = frozenset()  # of whom these tell
        self._held = b""  # the text of each scrape; empty: made anew

    def record(self, exchange: Exchange) -> None:
        """Count one request that was recorded."""
        entry, course, model, grid = exchange.entry, exchange.course, exchange.model, exchange.timing.first_token
        self._requests.labels(exchange.endpoint, str(entry.status)).inc()
        if entry.code is not None:
            self._refused.labels(entry.code).inc()
        if exchange.caller is not None:
            self._by_tenant.labels(exchange.caller.name).inc()
        self._seconds.labels(exchange.endpoint).observe(entry.duration_us / 1e6)
        if model is None:
            return
        for kind, tokens in zip(KINDS, (course.prompt_tokens, course.completion_tokens), strict=True):
            self._tokens.labels(model, kind).inc(tokens or 0)
            if tokens:
                self._recent(model, kind).append((time.monotonic(), tokens))
        if course.cached_tokens and model in self._hits:
            self._hits[model].add()
        for histogram, seconds in ((self._queue, course.began), (self._first, course.first_token)):
            if seconds is not None:
                histogram.labels(model).observe(bucket_us(seconds, grid) / 1e6)
        if course.first_token is not None:
            whole, first = entry.duration_us / 1e6, bucket_us(course.first_token, grid) / 1e6
            self._whole.labels(model).observe(whole)
            self._gaps.labels(model).observe(max(whole - first, 0.0) / max((course.completion_tokens or 0) - 1, 1))

    def watch(self, traffic: Traffic, compiling: Callable[[str], int], readiness: Readiness) -> None:
        """Add what is asked for at each scrape beside the load of models. `compiling`: requests of
        a tenant whose constraints wait."""
        self._of_tenants = [(Gauge("appliance_constraints_waiting", "Requests of a tenant whose answers' structure "
                                   "waits to be compiled.", ["tenant"], registry=self.registry), compiling)]
        self.ready.set_function(lambda: float(bool(readiness)))
        if readiness.room is not None:
            self._watch_room(readiness)
        if traffic.queue is not None:
            self._of_tenants.append((Gauge("appliance_tenant_requests_waiting", "Requests of a tenant that wait for a "
                                           "place.", ["tenant"], registry=self.registry),
                                     traffic.queue.answers.waiting_of))

    def watch_tenants(self, askers: frozenset[str]) -> None:
        """Tell of the tenants who may ask now, and of no others."""
        before, self._askers = self._askers, askers
        for gauge, waiting in self._of_tenants:
            for tenant in before - askers:
                gauge.remove(tenant)
            for tenant in sorted(askers - before):
                gauge.labels(tenant).set_function(partial(waiting, tenant))

    def _watch_room(self, readiness: Readiness) -> None:
        """Add the audit log's room on the state disk."""
        Gauge("appliance_state_free_bytes", "Bytes left for the audit log on the state disk.",
              registry=self.registry).set_function(lambda: readiness.room.free if readiness.room else 0)
        gauge = Gauge("appliance_state_room", "1 for the state that the audit log's room on the state disk is in.",
                      ["room"], registry=self.registry)
        for name in STATES:
            gauge.labels(name).set_function(partial(_has_state, readiness, name))

    def watch_model(self, model: ServedModel, traffic: Traffic) -> None:
        """Add the load and the pages of a model that takes requests now."""
        name, engine = model.name, model.running.engine
        waiting, running, slots, pages, claimed, prefixes, hits, late, lateness, rate = self._gauges
        waiting.labels(name).set_function(lambda: traffic.load_of(model).queued)
        running.labels(name).set_function(lambda: traffic.load_of(model).running)
        slots.labels(name).set(model.slots)
        pages.labels(name).set(engine.pages)
        claimed.labels(name).set_function(partial(self.claims.of, name))
        prefixes.labels(name).set(engine.prefix_pages)
        if engine.keeps_prefixes:
            found = self._hits[name] = Hits()
            hits.labels(name).set_function(lambda: found.noisy)
        if (beat := model.scheduler.beat) is not None:
            late.labels(name).set_function(lambda: beat.late)
            lateness.labels(name).set_function(lambda: beat.lateness * beat.interval)
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

    def hold(self) -> None:
        """Give the present numbers to each scrape from now on."""
        self._held = generate_latest(self.registry)

    def text(self) -> bytes:
        """The whole registry for a scrape."""
        return self._held or generate_latest(self.registry)


def _has_state(readiness: Readiness, state: str) -> int:
    return int(readiness.room is not None and readiness.room.state == state)
