"""Texts as tokens and back, by the names of vLLM's `/tokenize` and `/detokenize`, and by those of
llama.cpp's server.

Source of the formats: vLLM's `entrypoints/serve/tokenize/protocol.py`, and the README of
llama.cpp's server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, SkipValidation, model_validator

from appliance.api import document, findings, offers
from appliance.api.adapter import Adapter, Encoding, Names, Translation, read_as
from appliance.api.messages import ChatMessage, Wire
from appliance.api.problems import RequestError
from appliance.api.wire import ANY_MODEL, ChatRequest, CompletionRequest, ModelName, remove, request_of
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.other import TOKENS

_OWN = ("add_special_tokens", "add_special", "return_token_strs", "with_pieces", "content")  # not the domain's


class _Unnamed(Wire):
    """A request that may leave out the model if its key may ask only one."""

    model: ModelName = ANY_MODEL


class TokenizeRequest(_Unnamed):
    """`POST /tokenize`: a prompt, or a chat. llama.cpp's name of a prompt is `content`."""

    prompt: str | None = None
    content: str | None = None
    messages: SkipValidation[list[ChatMessage]] | None = None  # a chat's type judges them
    tools: SkipValidation[list[offers.ChatTool]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool | None = None  # absent: true, as in vLLM
    add_special: bool | None = None  # llama.cpp's name; absent: false there
    return_token_strs: bool = False
    with_pieces: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> TokenizeRequest:
        prompts = [each for each in (self.prompt, self.content, self.messages) if each is not None]
        if len(prompts) != 1:
            raise RequestError("invalid_value" if prompts else "missing_required_parameter",
                               "prompt: either this or messages is required", param="prompt")
        return self

    @property
    def special(self) -> bool:
        """Whether a prompt has the tokens that the model wants around a text."""
        asked = self.add_special_tokens if self.add_special is None else self.add_special
        return self.content is None if asked is None else asked


class Piece(BaseModel):
    """A token and its text, or the bytes of a part of a character."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(BaseModel):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int] | list[Piece]
    token_strs: list[str] | None = None


def _read(body: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    fields = document.read(body)
    remove(fields, drop)
    asked = {name: value for name, value in fields.items()
             if name in TokenizeRequest.model_fields and name not in _OWN}
    request = findings.check(dict(fields), TokenizeRequest, TOKENS, ignored)
    asked["model"] = request.model
    if request.messages is not None and request.add_special_tokens:
        ignored.note(("add_special_tokens",), "a chat has its template's tokens")

    def counted(encoding: Encoding) -> TokenizeAnswer:
        tokens = encoding.tokens if request.special or request.messages is not None else _own(encoding, asked["prompt"])
        texts = [encoding.piece(token).decode("utf-8", "replace") for token in tokens
                 ] if request.return_token_strs else None
        return TokenizeAnswer(
            count=len(tokens), max_model_len=encoding.context_length, token_strs=texts,
            tokens=[_piece(token, encoding) for token in tokens] if request.with_pieces else list(tokens))

    if request.messages is not None:
        return Translation(request_of(asked, ChatRequest, drop=drop, ignored=ignored), counted=counted)
    asked["prompt"] = request.prompt if request.content is None else request.content
    names = Names([("prompt", "prompt" if request.content is None else "content")])
    return Translation(request_of(asked, CompletionRequest, drop=drop, ignored=ignored), counted=counted, names=names)


def _own(encoding: Encoding, text: str) -> Sequence[int]:
    """Return the tokens of a text. If the whole text is a control token's, return that token: so
    clients look up the ids of what `/tokenizer_info` names."""
    control = encoding.control(text)
    return encoding.own if control is None else [control]


def _piece(token: int, encoding: Encoding) -> Piece:
    data = encoding.piece(token)
    try:
        return Piece(id=token, piece=data.decode())
    except UnicodeDecodeError:
        return Piece(id=token, piece=list(data))


TOKENIZE = Adapter("/tokenize", "The tokens of a prompt or a chat, where the policy allows it.", TokenizeRequest, _read,
                   TokenizeAnswer, rows=TOKENS, tells_tokens=True)


class DetokenizeRequest(_Unnamed):
    """`POST /detokenize`."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, fail_fast=True)]


class DetokenizeAnswer(BaseModel):
    """The text of tokens, by the names of vLLM and of llama.cpp."""

    prompt: str
    content: str


def _read_back(body: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    given = read_as(body, DetokenizeRequest, {}, drop, ignored)
    request = CompletionRequest.model_validate({"model": given.model, "prompt": given.tokens})

    def counted(encoding: Encoding) -> DetokenizeAnswer:
        text = encoding.decode(encoding.tokens)
        return DetokenizeAnswer(prompt=text, content=text)

    return Translation(request, counted=counted, names=Names([("prompt", "tokens")]))


DETOKENIZE = Adapter("/detokenize", "The text of tokens, where the policy allows it.", DetokenizeRequest, _read_back,
                     DetokenizeAnswer, tells_tokens=True)
