"""Texts as tokens and back, by the names of vLLM's `/tokenize` and `/detokenize`.

Source of the format: vLLM's `entrypoints/serve/tokenize/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, SkipValidation, model_validator

from appliance.service.api import document, offers
from appliance.service.api.adapter import Adapter, Ask, Encoding, Names, read_as
from appliance.service.api.dialects import Parameter
from appliance.service.api.messages import Message
from appliance.service.api.problems import RequestError
from appliance.service.api.wire import ChatRequest, CompletionRequest, Named, removed, settled

_ROWS = {row.name: row for row in (
    Parameter("add_special_tokens", (True, False), "a prompt has them, and a chat has its template's"),
    Parameter("mm_processor_kwargs", ({},)),
    Parameter("chat_template", instead="the policy decides this"))}


class TokenizeRequest(Named):
    """`POST /tokenize`: a prompt, or a chat."""

    prompt: str | None = None
    messages: SkipValidation[list[Message]] | None = None  # a chat's type judges them
    tools: SkipValidation[list[offers.Tool]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("missing_required_parameter" if self.prompt is None else "invalid_value",
                               "prompt: either this or messages is required", param="prompt")
        return self


class TokenizeAnswer(BaseModel):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


def _read(body: bytes, drop: Sequence[str]) -> Ask:
    given = read_as(body, TokenizeRequest, _ROWS, drop)
    asked = {name: value for name, value in document.read(body).items()
             if name in TokenizeRequest.model_fields and name != "return_token_strs"}
    removed(asked, drop)
    strings = given.return_token_strs

    def counted(encoding: Encoding) -> TokenizeAnswer:
        texts = [encoding.piece(token).decode("utf-8", "replace") for token in encoding.tokens] if strings else None
        return TokenizeAnswer(count=len(encoding.tokens), max_model_len=encoding.context_length,
                              tokens=list(encoding.tokens), token_strs=texts)

    if given.messages is None:
        return Ask(settled(asked, CompletionRequest, drop=drop), counted=counted)
    return Ask(settled(asked, ChatRequest, drop=drop), counted=counted)


TOKENIZE = Adapter("/tokenize", "The tokens of a prompt or a chat, where the policy allows it.", TokenizeRequest, _read,
                   TokenizeAnswer, rows=_ROWS, tells_tokens=True)


class DetokenizeRequest(Named):
    """`POST /detokenize`."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, fail_fast=True)]


class DetokenizeAnswer(BaseModel):
    """The text of tokens."""

    prompt: str


def _read_back(body: bytes, drop: Sequence[str]) -> Ask:
    given = read_as(body, DetokenizeRequest, {}, drop)
    request = CompletionRequest.model_validate({"model": given.model, "prompt": given.tokens})
    return Ask(request, counted=lambda encoding: DetokenizeAnswer(prompt=encoding.decode(encoding.tokens)),
               names=Names([("prompt", "tokens")]))


DETOKENIZE = Adapter("/detokenize", "The text of tokens, where the policy allows it.", DetokenizeRequest, _read_back,
                     DetokenizeAnswer, tells_tokens=True)
