"""The endpoints for text, one row each: routes, names and the API's document follow."""

from __future__ import annotations

from appliance.api.adapter import Adapter
from appliance.api.adapters import plain, tokens
from appliance.api.anthropic.adapter import MESSAGE, MESSAGE_COUNT
from appliance.api.problems import RequestError
from appliance.api.responses.adapter import RESPONSE

ADAPTERS: tuple[Adapter, ...] = (plain.CHAT, plain.COMPLETION, RESPONSE, MESSAGE, MESSAGE_COUNT, tokens.TOKENIZE,
                                 tokens.DETOKENIZE)
_SHAPED = tuple(sorted(ADAPTERS, key=lambda row: -len(row.path)))  # the longest path that fits counts


def refusal(path: str, error: RequestError, request_id: str) -> bytes:
    """Return the body of a refusal, in the shape of the API that a request's path is of; OpenAI's
    elsewhere."""
    row = next((row for row in _SHAPED if path == row.path or path.startswith(f"{row.path}/")), None)
    return error.body() if row is None else row.refusal(error, request_id)
