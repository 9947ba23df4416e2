"""The endpoints. Each handler names its types and leaves the work to the modules below."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from litestar import Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream
from pydantic import BaseModel

from appliance.api.adapter import Adapter
from appliance.api.adapters.table import ADAPTERS
from appliance.api.problems import RequestError
from appliance.attestation.tpm.credential import FORMAT
from appliance.http.body import read_body, read_json
from appliance.http.tls import Channel
from appliance.service.admission.tenants import Caller
from appliance.service.answering.admit import require_tokens
from appliance.service.answering.cards import ModelList, card, tokenizer_card
from appliance.service.answering.respond import JSON, answer, context_of, pieces_of
from appliance.service.attesting import timestamps, witnesses
from appliance.service.attesting.evidences import PLAIN
from appliance.service.counting.usage import days_of
from appliance.service.loading.changes import Changes
from appliance.service.loading.tenant_lists import most_bytes
from appliance.service.loading.wire import BODY_BYTES, Change
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.metrics import CONTENT_TYPE
from appliance.service.parts.wiring import Wiring

NOTE = "text/plain"  # the framework adds the charset
LINES = "application/jsonl"
DOCUMENT = "/openapi.json"
_FILE = files("appliance.service") / "openapi.json"
TEXT = json.dumps(json.loads(_FILE.read_bytes()), ensure_ascii=False).encode()  # now: the sandbox closes files
Incoming = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]


def asks(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may ask models."""
    _identify(connection).require("ask")


def watches(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may read the log."""
    _identify(connection).require("watch")


def scrapes(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may read metrics."""
    _identify(connection).require("scrape")


def changes(connection: Connection, _handler: BaseRouteHandler) -> None:
    """Only for a key whose role may change models and tenants."""
    _identify(connection).require("change")


def counts(connection: Connection, _handler: BaseRouteHandler) -> None:
    """For each key whose role may know its own usage."""
    _identify(connection).require("count")


def _identify(connection: Connection) -> Caller:
    service: Wiring = connection.app.state.service
    exchange = Exchange.of(connection.scope)
    exchange.caller = service.roster.authenticate(
        connection.headers.get("authorization"), connection.headers.get("x-api-key"))
    service.readiness.require_room(exchange.endpoint)
    return exchange.caller


def _changes_of(request: Incoming) -> Changes:
    changes: Changes = request.app.state.changes
    return changes


def _json(value: BaseModel | Mapping[str, Any]) -> Response[Any]:
    """A whole answer of JSON."""
    text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)
    return Response(text.encode(), media_type=JSON)


def _handler(adapter: Adapter) -> HTTPRouteHandler:
    """The handler of an endpoint for text."""
    @post(adapter.path, status_code=200, guards=[asks])
    async def handler(request: Incoming) -> Response[Any]:
        return await answer(request, adapter)

    return handler


@get("/v1/models", guards=[asks])
async def models(request: Incoming) -> Response[Any]:
    """The models that the caller may ask, and their aliases."""
    service, exchange = context_of(request)
    caller, limits = exchange.known, service.policy.limits
    return _json(ModelList(data=[card(service.models.of(caller, name), limits, name)
                                 for name in service.models.names(caller)]))


@get("/v1/models/{name:str}", guards=[asks])
async def one_model(request: Incoming, name: FromPath[str]) -> Response[Any]:
    """One of them."""
    service, exchange = context_of(request)
    model = service.models.of(exchange.known, name)
    exchange.model = model.name
    return _json(card(model, service.policy.limits, name))


@get("/v1/admin/models", guards=[changes])
async def declared_models(request: Incoming) -> Response[Any]:
    """The models of the policy, and which of them are loaded."""
    return _json(_changes_of(request).overview())


@post("/v1/admin/models", status_code=200, guards=[changes])
async def change_models(request: Incoming) -> Response[Any]:
    """Load a model, unload one, or put one in the place of another."""
    service, exchange = context_of(request)
    if service.readiness.draining:
        raise RequestError("shutting_down")
    change = Change.read(await read_json(request, BODY_BYTES))
    service.roster.current(exchange.known).require("change")
    return _json(await _changes_of(request).change(change, exchange.asker))


@post("/v1/admin/tenants", status_code=200, guards=[changes])
async def replace_tenants(request: Incoming) -> Response[Any]:
    """Put a newer list of tenants in force, which the policy's authority signed."""
    service, exchange = context_of(request)
    lists = _changes_of(request).lists
    with lists.reading(exchange.known):
        return _json(await lists.take(await read_json(request, most_bytes(service.policy.limits)), exchange))


@get("/v1/usage", guards=[counts])
async def usage(request: Incoming) -> Response[Any]:
    """Usage of the caller's key, by day and model; of all keys, where it may read the log."""
    service, exchange = context_of(request)
    caller = exchange.known
    return _json(service.books.ledger.rows(key=caller.key_digest, everybody=caller.may("watch"),
                                           days=days_of(request.query_params.getall("days", []))))


@get("/v1/attestation")
async def attestation(request: Incoming) -> Response[Any]:
    """Evidence for a nonce. Open to all: a client checks it before it shows its key."""
    service, exchange = context_of(request)
    channel: Channel = request.scope["state"].get("channel", Channel(PLAIN))
    session = channel.session if service.policy.service.session_binding == "required" else None
    evidences = service.attesting.evidences
    evidence = await evidences.for_nonce(request.query_params.getall("nonce", []), channel.key, session)
    if not service.audit.folds:  # else it is counted, as all that no key asked for
        service.audit.write("attestation.made", request=exchange.request_id,
                            generation=evidence.statement["generation"], nonces=evidence.statement["nonces"]["size"])
    pieces = evidences.pieces(evidence)
    return Stream(pieces_of(iter(pieces)), media_type=JSON, headers={"content-length": str(sum(map(len, pieces)))})


@get("/v1/attestation/activation")
async def activation(request: Incoming) -> Response[Any]:
    """A TPM's answer to a challenge. Open to all, as evidence is: it gives away nothing but that
    the TPM opened it."""
    service, _exchange = context_of(request)
    answer = await service.attesting.activations.answer(request.query_params.getall("challenge", []))
    return _json({"format": FORMAT, "answer": answer.hex()})


@get("/")
async def root() -> Response[Any]:
    """Say that the service is there: some clients look before they ask. Open to all."""
    return _json({"object": "service", "server": "appliance", "description": DOCUMENT})


@get("/tokenizer_info", guards=[asks])
async def tokenizer_info(request: Incoming) -> Response[Any]:
    """The tokenizer and the template of a model, where the policy lets tokens be told."""
    service, exchange = context_of(request)
    caller = exchange.known
    model = service.models.of(caller, request.query_params.get("model") or service.models.only(caller))
    exchange.model = model.name
    require_tokens(model)
    return _json(tokenizer_card(model))


@get("/health")
async def health(request: Incoming) -> Response[Any]:
    """Whether requests are accepted (200) or not (503), and how the boot went. Open to all."""
    service, _exchange = context_of(request)
    ready = service.readiness
    headers = None if ready else RequestError("shutting_down" if ready.draining else "state_full").headers
    return Response(json.dumps(service.health()).encode(), media_type=JSON, headers=headers,
                    status_code=200 if ready else 503)


@get(DOCUMENT)
async def description() -> Response[Any]:
    """The API's document, as `make reference` wrote it. Open to all: it says nothing of this
    deployment."""
    return Response(TEXT, media_type=JSON)


@get("/metrics", guards=[scrapes])
async def metrics(request: Incoming) -> Response[Any]:
    """Counters in Prometheus' text format."""
    service, _exchange = context_of(request)
    return Response(service.books.metrics.text(), media_type=CONTENT_TYPE)


@get("/v1/audit/checkpoint", guards=[watches])
async def checkpoint(request: Incoming) -> Response[Any]:
    """The audit log's newest checkpoint, a signed note."""
    service, _exchange = context_of(request)
    return Response(service.attesting.witnesses.checkpoint(), media_type=NOTE)


@get("/v1/audit/log", guards=[watches])
async def held_log(request: Incoming) -> Response[Any]:
    """The audit log as it is on the state disk, a record a line."""
    service, exchange = context_of(request)
    lines = service.attesting.held_log.open()
    exchange.closing.append(service.attesting.held_log.leave)
    return Stream(lines, media_type=LINES)


@get("/v1/audit/witnesses", guards=[watches])
async def cosignature_requests(request: Incoming) -> Response[Any]:
    """The next request to each witness, for a relay."""
    service, _exchange = context_of(request)
    return _json(service.attesting.witnesses.requests())


@get("/v1/audit/timestamp", guards=[watches])
async def timestamp_request(request: Incoming) -> Response[Any]:
    """The next request to the timestamp authority, for a relay."""
    service, _exchange = context_of(request)
    return _json(service.attesting.timestamps.request())


@post("/v1/audit/timestamp/response", status_code=200, guards=[watches])
async def timestamp_response(request: Incoming) -> Response[Any]:
    """The authority's answer, from a relay."""
    service, _exchange = context_of(request)
    return _json(service.attesting.timestamps.take(await read_body(request, timestamps.MAX_ANSWER_BYTES)))


@post("/v1/audit/witnesses/{witness:str}", status_code=200, guards=[watches])
async def cosignature(request: Incoming, witness: FromPath[str]) -> Response[Any]:
    """A witness's answer, from a relay."""
    service, _exchange = context_of(request)
    size = service.attesting.witnesses.take(witness, await read_body(request, witnesses.MAX_ANSWER_BYTES))
    return _json({"size": size})


HANDLERS = [*map(_handler, ADAPTERS), models, one_model, declared_models, change_models, replace_tenants, usage,
            attestation, activation, checkpoint, held_log, cosignature_requests, cosignature, timestamp_request,
            timestamp_response, root, tokenizer_info, health, description, metrics]
