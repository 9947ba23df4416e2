"""The ASGI application: routes over the parts of a service, and the guard around them."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from appliance.api.problems import RequestError
from appliance.http.uncached import uncache
from appliance.service.answering.guard import Guard
from appliance.service.loading.changes import Changes
from appliance.service.parts import refusals
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring
from appliance.service.routes import HANDLERS

# A refusal of the framework itself -> our code
FRAMEWORK = {400: "malformed_request", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large",
             415: "unsupported_media_type"}


def create(service: Wiring, changes: Changes) -> Guard:
    """Make the ASGI application: the guard around Litestar, which has no logging, no documentation
    pages, no debugging."""
    app = Litestar(
        route_handlers=HANDLERS, state=State({"service": service, "changes": changes}),
        exception_handlers={Exception: _refuse}, openapi_config=None, logging_config=None, debug=False,
        pdb_on_exception=False, request_max_body_size=None, cors_config=None, csrf_config=None,
        compression_config=None)
    return Guard(uncache(app), service)


def _refuse(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Any exception as an answer in OpenAI's shape. Its class and code decide; of its words only
    those of a chat template, against the messages, are told."""
    service: Wiring = request.app.state.service
    if isinstance(error, HTTPException):
        error = RequestError(FRAMEWORK.get(error.status_code, "internal_error"))
    exchange = Exchange.of(request.scope)
    refusal = refusals.refuse(service, exchange, error)
    body = refusals.body_of(service, exchange, refusal)
    return Response(body, media_type="application/json", status_code=refusal.status, headers=refusal.headers)
