"""Exceptions as refusals: noted in the exchange, and written as the endpoint's dialect has them."""

from __future__ import annotations

from appliance.api import problems
from appliance.api.adapters import parameters, table
from appliance.api.problems import RequestError
from appliance.audit import endpoints
from appliance.service.admission.privacy import spaces
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring


def refuse(service: Wiring, exchange: Exchange, error: Exception) -> RequestError:
    """Return an exception as a refusal, noted in the exchange. An unforeseen one is reported by
    class and place."""
    refusal = problems.refusal(error)
    exchange.entry.code, exchange.entry.param = refusal.code, parameters.known(refusal.param)
    if refusal.status == 405:
        exchange.headers["allow"] = endpoints.methods(exchange.endpoint)
    if refusal.code == "internal_error" and not service.readiness.unaudited:
        service.booted.silence.exception("request", type(error), error.__traceback__)
    problems.let_go(error)
    return refusal


def body_of(service: Wiring, exchange: Exchange, refusal: RequestError) -> bytes:
    """Return a refusal's body; on inference endpoints with as many spaces after it as an answer
    could have."""
    body = table.refusal(exchange.path or exchange.endpoint, refusal, exchange.request_id)
    multiple = service.padding if exchange.endpoint in endpoints.INFERENCE else None
    exchange.departure.spaces = spaces(len(body), multiple)
    return body
