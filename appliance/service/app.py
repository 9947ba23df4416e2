"""The wiring: a booted appliance and its policy become one ASGI application."""

from __future__ import annotations

import contextlib
from typing import Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from appliance import hostclock
from appliance.api.adapters import parameters
from appliance.api.problems import PROBLEMS, RequestError
from appliance.audit.digests import Salts
from appliance.boot.booted import Booted
from appliance.boot.running.load import RunningModel
from appliance.engine.scheduler import Scheduler
from appliance.http.uncached import uncache
from appliance.policy.schema import Limits, Policy
from appliance.secure.residue import Scrubber
from appliance.service.admission import quotas
from appliance.service.admission.constraints import Constraints
from appliance.service.admission.limits import Accounts, Places, Rates
from appliance.service.admission.privacy import Timing
from appliance.service.admission.redaction import Rule
from appliance.service.admission.tenants import Tenants
from appliance.service.admission.turns import Priorities, Queue
from appliance.service.answering.context import ServedModel, Service
from appliance.service.answering.exchange import Exchange
from appliance.service.answering.guard import Guard
from appliance.service.attesting.activation import Activations
from appliance.service.attesting.checkpoints import Flushing
from appliance.service.attesting.evidences import Evidences
from appliance.service.attesting.held_log import HeldLog
from appliance.service.attesting.receipts import Receipts
from appliance.service.attesting.timestamps import Timestamps
from appliance.service.attesting.witnesses import Witnesses
from appliance.service.loading.changes import Changes
from appliance.service.routes import HANDLERS

# A refusal of the framework itself -> our code
FRAMEWORK = {400: "malformed_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large",
             415: "unsupported_media_type"}


def assemble(booted: Booted, closing: contextlib.ExitStack) -> Service:
    """Everything that handlers use, from the policy and what was booted by it. `closing` ends what
    was started, also where the rest fails."""
    policy = booted.policy
    limits = policy.limits
    booted.audit.admit_codes(PROBLEMS)
    tenants = Tenants(booted.tenants.tenants)
    accounts = Accounts(Rates(limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day))
    if booted.state is not None:
        quotas.restore(accounts, booted.state.snapshot.quotas, tenants.keys)
    booted.audit.words.parameters.admit(parameters.NAMES)
    queue = None if limits.queued_requests is None else Queue(
        limits.concurrent_requests, tenants.askers, priorities=Priorities(tenants.weights, tenants.places))
    scrubber = Scrubber()
    timestamps = Timestamps(booted.audit, policy.audit.timestamp_authority)
    service = Service(
        booted=booted, models={}, tenants=tenants, accounts=accounts,
        places=_places(limits, tenants, queue), queue=queue,
        timing=_timing(policy), rules=_rules(booted), evidences=Evidences(booted.attestor),
        activations=Activations(booted.attestor), scrubber=scrubber,
        constraints=Constraints(tenants.askers, scrubber.begin_soon),
        flushing=Flushing(booted.audit), timestamps=timestamps,
        witnesses=Witnesses(booted.audit, policy.audit.witnesses, timestamps),
        held_log=HeldLog(booted.state if policy.audit.sink == "state" else None),
        salts=Salts() if booted.audit.version > 1 else None,
        receipts=Receipts(booted) if policy.audit.receipts else None)
    if service.salts is not None:
        closing.callback(service.salts.wipe)
    closing.callback(_close, service)
    for name, running in booted.models.items():
        service.models[name] = _served(booted, tenants, running)
    service.metrics.watch(service)
    service.changes = Changes(service, lambda running: _served(booted, tenants, running))
    return service


def create(service: Service) -> Guard:
    """The ASGI application: the guard around Litestar, which has no logging, no documentation
    pages, no debugging."""
    app = Litestar(
        route_handlers=HANDLERS, state=State({"service": service}), exception_handlers={Exception: _refuse},
        openapi_config=None, logging_config=None, debug=False, pdb_on_exception=False, request_max_body_size=None,
        cors_config=None, csrf_config=None, compression_config=None)
    return Guard(uncache(app), service)


def _places(limits: Limits, tenants: Tenants, queue: Queue | None) -> Places:
    """Places for all requests that are let in."""
    if queue is None or limits.queued_requests is None:
        return Places(limits.concurrent_requests, tenants.askers)
    return Places(limits.concurrent_requests + limits.queued_requests, tenants.askers, queue.retry_after)


def _served(booted: Booted, tenants: Tenants, running: RunningModel) -> ServedModel:
    """A loaded model with its scheduler, which somebody must close."""
    limits, name = booted.policy.limits, running.name
    queue = limits.concurrent_requests * limits.choices  # prompts that a model has at the same time, at most
    scheduler = Scheduler(running.engine, queue=queue, tenants=tenants.askers_of(name), weights=tenants.weights,
                          prefix_lifetime=_prefix_lifetime(running),
                          shelf=None if booted.sessions is None else booted.sessions.shelf(name))
    return ServedModel(running, scheduler, int(hostclock.seconds()))


def _close(service: Service) -> None:
    """End every scheduler that there is then."""
    with contextlib.ExitStack() as closing:  # all of them, whatever goes wrong with one
        for model in service.held:
            closing.callback(model.scheduler.close)


def _prefix_lifetime(running: RunningModel) -> float | None:
    """Seconds for which a model keeps pages of texts; None: not at all."""
    kept = running.policy.prefix_cache
    return None if kept is None or not running.engine.keeps_prefixes else kept.lifetime_ms / 1000


def _timing(policy: Policy) -> Timing:
    padding = policy.privacy.timing_padding
    if padding is None:
        return Timing()
    return Timing(padding.first_token_ms / 1000, padding.total_ms / 1000, padding.jitter_ms / 1000)


def _rules(booted: Booted) -> tuple[Rule, ...]:
    patterns = booted.policy.privacy.redaction.patterns
    return tuple(Rule.compile(pattern.name, pattern.regex, pattern.replacement, booted.kernels)
                 for pattern in patterns)


def _refuse(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Any exception as an answer in OpenAI's shape. Its class and code decide; of its words only
    those of a chat template, against the messages, are told."""
    service: Service = request.app.state.service
    if isinstance(error, HTTPException):
        error = RequestError(FRAMEWORK.get(error.status_code, "internal_error"))
    exchange = Exchange.of(request.scope)
    refused = service.refuse(exchange, error)
    body = service.refusal_body(exchange, refused)
    return Response(body, media_type="application/json", status_code=refused.status, headers=refused.headers)
