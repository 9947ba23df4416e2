"""The endpoints whose requests are the domain's own: chats and text completions."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.service.api import dialects
from appliance.service.api.adapter import Adapter, Ask, Told
from appliance.service.api.answers import ChatChunk, ChatCompletion, TextCompletion
from appliance.service.api.shapes import ChatShape, TextShape
from appliance.service.api.wire import ChatRequest, CompletionRequest, parse


def _chat(body: bytes, drop: Sequence[str]) -> Ask:
    request = parse(body, ChatRequest, drop=drop)
    with_usage = request.include_usage

    def shape(told: Told) -> ChatShape:
        return ChatShape(told.request_id, told.model, told.fingerprint, with_usage, channels=told.channels,
                         older=told.older, framed=told.padding is not None)

    return Ask(request, shape, usage=with_usage)


def _completion(body: bytes, drop: Sequence[str]) -> Ask:
    request = parse(body, CompletionRequest, drop=drop)
    with_usage = request.include_usage
    return Ask(request, lambda told: TextShape(told.request_id, told.model, told.fingerprint, with_usage,
                                               leads=told.leads), usage=with_usage)


CHAT = Adapter("/v1/chat/completions", "An answer to a conversation.", ChatRequest, _chat, ChatCompletion, (ChatChunk,),
               dialects.TABLE)
COMPLETION = Adapter("/v1/completions", "A text that goes on from a prompt.", CompletionRequest, _completion,
                     TextCompletion, (TextCompletion,), dialects.TABLE)
