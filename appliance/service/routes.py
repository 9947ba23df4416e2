"""The endpoints. Each handler names its types and leaves the work to the modules below."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from litestar import Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream

from appliance.api.adapter import Adapter
from appliance.api.adapters.table import ADAPTERS
from appliance.api.problems import RequestError
from appliance.attestation.tpm.credential import FORMAT
from appliance.http.body import read_body, read_json
from appliance.http.tls import Channel
from appliance.service import openapi
from appliance.service.answering.admit import require_tokens
from appliance.service.answering.cards import ModelList, card, tokenizer_card
from appliance.service.answering.exchange import Exchange
from appliance.service.answering.metrics import CONTENT_TYPE
from appliance.service.answering.respond import JSON, answer, context_of, gathered
from appliance.service.attesting.evidences import PLAIN
from appliance.service.attesting.timestamps import MAX_ANSWER_BYTES as MAX_RESPONSE_BYTES
from appliance.service.attesting.witnesses import MAX_ANSWER_BYTES
from appliance.service.counting.usage import days_of
from appliance.service.loading.tenant_lists import most_bytes
from appliance.service.loading.wire import BODY_BYTES, Change

NOTE = "text/plain"  # the framework adds the charset
LINES = "application/jsonl"
Incoming = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]


def asks(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may ask models."""
    _identify(connection).require("ask")


def watches(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may read metrics."""
    _identify(connection).require("watch")


def changes(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may change models and tenants."""
    _identify(connection).require("change")


def counts(connection: Connection, _handler: BaseRouteHandler) -> None:
    """For each key: it may know its own usage."""
    _identify(connection)


def _identify(connection: Connection) -> Any:
    exchange = Exchange.of(connection.scope)
    exchange.caller = connection.app.state.service.tenants.authenticate(
        connection.headers.get("authorization"), connection.headers.get("x-api-key"))
    connection.app.state.service.require_room(exchange.endpoint)
    return exchange.caller


def _answering(adapter: Adapter) -> HTTPRouteHandler:
    """The handler of an endpoint for text."""
    @post(adapter.path, status_code=200, guards=[asks])
    async def handler(request: Incoming) -> Response[Any]:
        return await answer(request, adapter)

    return handler


@get("/v1/models", guards=[asks])
async def models(request: Incoming) -> Response[Any]:
    """The models that the caller may ask."""
    service, exchange = context_of(request)
    allowed = [model for model in service.models.values() if exchange.caller and exchange.caller.may_ask(model.name)]
    cards = ModelList(data=[card(model, service.policy.limits) for model in allowed])
    return Response(cards.model_dump_json().encode(), media_type=JSON)


@get("/v1/models/{name:str}", guards=[asks])
async def one_model(request: Incoming, name: FromPath[str]) -> Response[Any]:
    """One of them."""
    service, exchange = context_of(request)
    if exchange.caller is None:
        raise TypeError("a guarded request without a caller")
    model = service.model_for(exchange.caller, name)
    exchange.model = model.name
    return Response(card(model, service.policy.limits).model_dump_json().encode(), media_type=JSON)


@get("/v1/admin/models", guards=[changes])
async def declared_models(request: Incoming) -> Response[Any]:
    """The models of the policy, and which of them are loaded."""
    service, _exchange = context_of(request)
    return Response(service.changes.told().model_dump_json().encode(), media_type=JSON)


@post("/v1/admin/models", status_code=200, guards=[changes])
async def change_models(request: Incoming) -> Response[Any]:
    """Load a model, unload one, or put one in the place of another."""
    service, exchange = context_of(request)
    if service.draining:
        raise RequestError("shutting_down")
    change = Change.read(await read_json(request, BODY_BYTES))
    service.tenants.current(exchange.known).require("change")
    told = await service.changes.change(change, exchange.asker)
    return Response(told.model_dump_json().encode(), media_type=JSON)


@post("/v1/admin/tenants", status_code=200, guards=[changes])
async def replace_tenants(request: Incoming) -> Response[Any]:
    """Put a newer list of tenants in force, which the policy's authority signed."""
    service, exchange = context_of(request)
    lists = service.changes.lists
    with lists.reading(exchange.known):
        told = await lists.take(await read_json(request, most_bytes(service.policy.limits)), exchange)
    return Response(told.model_dump_json().encode(), media_type=JSON)


@get("/v1/usage", guards=[counts])
async def usage(request: Incoming) -> Response[Any]:
    """Usage of the caller's key, by day and model; of all keys, for one that may read metrics."""
    service, exchange = context_of(request)
    caller = exchange.known
    told = service.ledger.told(key=caller.key_digest, everybody=caller.may("watch"),
                               days=days_of(request.query_params.getall("days", [])))
    return Response(told.model_dump_json().encode(), media_type=JSON)


@get("/v1/attestation")
async def attestation(request: Incoming) -> Response[Any]:
    """Evidence for a nonce. Open to all: a client checks it before it shows its key."""
    service, exchange = context_of(request)
    channel: Channel = request.scope["state"].get("channel", Channel(PLAIN))
    session = channel.session if service.policy.service.session_binding == "required" else None
    evidence = await service.evidences.for_nonce(request.query_params.getall("nonce", []), channel.key, session)
    if not service.audit.folds:  # else it is counted, as all that no key asked for
        service.audit.write("attestation.made", request=exchange.request_id,
                            generation=evidence.statement["generation"], nonces=evidence.statement["nonces"]["size"])
    pieces = service.evidences.pieces(evidence)
    return Stream(gathered(iter(pieces)), media_type=JSON, headers={"content-length": str(sum(map(len, pieces)))})


@get("/v1/attestation/activation")
async def activation(request: Incoming) -> Response[Any]:
    """A TPM's answer to a challenge. Open to all, as evidence is: it gives away nothing but that
    the TPM opened it."""
    service, _exchange = context_of(request)
    answer = await service.activations.answer(request.query_params.getall("challenge", []))
    return Response(json.dumps({"format": FORMAT, "answer": answer.hex()}).encode(), media_type=JSON)


@get("/")
async def root() -> Response[Any]:
    """Say that the service is there: some clients look before they ask. Open to all."""
    return Response(json.dumps({"object": "service", "server": "appliance", "description": openapi.PATH}).encode(),
                    media_type=JSON)


@get("/tokenizer_info", guards=[asks])
async def tokenizer_info(request: Incoming) -> Response[Any]:
    """The tokenizer and the template of a model, where the policy lets tokens be told."""
    service, exchange = context_of(request)
    caller = exchange.known
    model = service.model_for(caller, request.query_params.get("model") or service.only_model(caller))
    exchange.model = model.name
    require_tokens(model)
    return Response(tokenizer_card(model).model_dump_json().encode(), media_type=JSON)


@get("/health")
async def health(request: Incoming) -> Response[Any]:
    """Whether requests are accepted (200) or not (503), and how the boot went. Open to all."""
    service, _exchange = context_of(request)
    headers = None if service.ready else RequestError("shutting_down" if service.draining else "state_full").headers
    return Response(json.dumps(service.health()).encode(), media_type=JSON, headers=headers,
                    status_code=200 if service.ready else 503)


@get(openapi.PATH)
async def described() -> Response[Any]:
    """The API's document. Open to all: it says nothing of this deployment."""
    return Response(await asyncio.to_thread(openapi.body), media_type=JSON)


@get("/metrics", guards=[watches])
async def metrics(request: Incoming) -> Response[Any]:
    """Counters in Prometheus' text format."""
    service, _exchange = context_of(request)
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


@get("/v1/audit/checkpoint", guards=[watches])
async def checkpoint(request: Incoming) -> Response[Any]:
    """The audit log's newest checkpoint, a signed note."""
    service, _exchange = context_of(request)
    return Response(service.witnesses.checkpoint(), media_type=NOTE)


@get("/v1/audit/log", guards=[watches])
async def held_log(request: Incoming) -> Response[Any]:
    """The audit log as it is on the state disk, a record a line."""
    service, exchange = context_of(request)
    lines = service.held_log.open()
    exchange.closing.append(service.held_log.leave)
    return Stream(lines, media_type=LINES)


@get("/v1/audit/witnesses", guards=[watches])
async def witnesses(request: Incoming) -> Response[Any]:
    """The next request to each witness, for a relay."""
    service, _exchange = context_of(request)
    return Response(json.dumps(service.witnesses.asked()).encode(), media_type=JSON)


@get("/v1/audit/timestamp", guards=[watches])
async def timestamp(request: Incoming) -> Response[Any]:
    """The next request to the timestamp authority, for a relay."""
    service, _exchange = context_of(request)
    return Response(json.dumps(service.timestamps.asked()).encode(), media_type=JSON)


@post("/v1/audit/timestamp/response", status_code=200, guards=[watches])
async def stamped(request: Incoming) -> Response[Any]:
    """The authority's answer, from a relay."""
    service, _exchange = context_of(request)
    body = await read_body(request, MAX_RESPONSE_BYTES)
    return Response(json.dumps(service.timestamps.answered(body)).encode(), media_type=JSON)


@post("/v1/audit/witnesses/{witness:str}", status_code=200, guards=[watches])
async def cosignature(request: Incoming, witness: FromPath[str]) -> Response[Any]:
    """A witness's answer, from a relay."""
    service, _exchange = context_of(request)
    size = service.witnesses.answered(witness, await read_body(request, MAX_ANSWER_BYTES))
    return Response(json.dumps({"size": size}).encode(), media_type=JSON)


HANDLERS = [*map(_answering, ADAPTERS), models, one_model, declared_models, change_models, replace_tenants, usage,
            attestation, activation, checkpoint, held_log, witnesses, cosignature, timestamp, stamped, root,
            tokenizer_info, health, described, metrics]
