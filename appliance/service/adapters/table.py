"""The endpoints for text, one row each: routes, names and the API's document follow."""

from __future__ import annotations

from appliance.service.adapters import plain, tokens
from appliance.service.anthropic import adapter as anthropic
from appliance.service.api.adapter import Adapter
from appliance.service.api.problems import RequestError
from appliance.service.responses import adapter as responses

ADAPTERS: tuple[Adapter, ...] = (plain.CHAT, plain.COMPLETION, responses.ADAPTER, anthropic.ADAPTER,
                                 anthropic.COUNTING, tokens.TOKENIZE, tokens.DETOKENIZE)
_BY_PATH = {row.path: row for row in ADAPTERS}


def refusal(path: str, error: RequestError, request_id: str) -> bytes:
    """The body of a refusal, in the shape of the endpoint at a path; OpenAI's elsewhere."""
    row = _BY_PATH.get(path)
    return error.body() if row is None else row.refusal(error, request_id)
