"""The endpoints whose requests are the domain's own: chats and text completions."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.api import dialects, document, offers
from appliance.api.adapter import Adapter, Names, Translation
from appliance.api.answers import ChatChunk, ChatCompletion, TextCompletion
from appliance.api.shapes import ChatShape, TextShape
from appliance.api.wire import ChatRequest, CompletionRequest, parse, remove, request_of
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.table import ROWS


def _chat(body: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    fields = document.read(body)
    remove(fields, dialects.spellings(drop))
    kept = offers.without_hosted(fields, ("function",), ignored)
    names = Names([("reasoning_effort", dialects.effort_name(fields))],
                  tools=[f"tools.{place}" for place in kept])
    with names.renaming():
        request = request_of(fields, ChatRequest, drop=drop, ignored=ignored)
    return Translation(request, lambda facts: ChatShape(facts, request.include_usage), request.include_usage, names)


def _completion(body: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    request = parse(body, CompletionRequest, drop=drop, ignored=ignored)
    return Translation(request, lambda facts: TextShape(facts, request.include_usage), request.include_usage)


CHAT = Adapter("/v1/chat/completions", "An answer to a conversation.", ChatRequest, _chat, ChatCompletion, (ChatChunk,),
               ROWS)
COMPLETION = Adapter("/v1/completions", "A text that goes on from a prompt.", CompletionRequest, _completion,
                     TextCompletion, (TextCompletion,), ROWS)
