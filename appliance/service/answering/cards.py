"""Model cards: the fields of `/v1/models`, by the names that clients look for."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from pydantic import BaseModel

from appliance.models.file.opened import OpenModel
from appliance.policy.schema import Limits
from appliance.service.answering.lengths import most_generated, most_tokens
from appliance.service.parts.models import ServedModel


class Meta(BaseModel):
    """Numbers of the model's file, by llama.cpp's names; null where the file does not say."""

    n_ctx_train: int | None
    n_embd: int | None
    n_params: int
    n_vocab: int
    size: int  # bytes of weights


class ModelCard(BaseModel):
    """A model that the caller may ask."""

    id: str
    root: str  # the model's own name, where `id` is an alias; vLLM's name
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["appliance"] = "appliance"
    chat_template: bool  # whether it takes chats; another continues prompts only
    max_model_len: int  # tokens of prompt and answer together; vLLM's name
    context_length: int  # the same; OpenRouter's name
    max_prompt_tokens: int
    max_completion_tokens: int
    quantization: str  # the block format of most bytes
    sha256: str  # of the GGUF file, as evidence has it
    sealed_header_sha256: str | None
    meta: Meta


class ModelList(BaseModel):
    """The cards of all models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def card(model: ServedModel, limits: Limits, name: str) -> ModelCard:
    """Return the card of a loaded model, by one of its names, under the policy's limits."""
    bound, context = model.running.bound(), model.running.context_length
    return ModelCard(
        id=name, root=model.name, created=model.created, chat_template=model.running.template is not None,
        max_model_len=context, context_length=context,
        max_prompt_tokens=most_tokens(limits, context, model.bounds),
        max_completion_tokens=min(most_generated(limits, model.bounds), context - 1),
        quantization=_quantization(model.running.source), sha256=bound.sha256,
        sealed_header_sha256=bound.sealed_header_sha256, meta=_meta(model))


def _quantization(source: OpenModel) -> str:
    nbytes: Counter[str] = Counter()
    for info in source.tensors.values():
        nbytes[info.format.name] += info.nbytes
    return nbytes.most_common(1)[0][0]


def _meta(model: ServedModel) -> Meta:
    source = model.running.source
    name = source.metadata.get("general.architecture")

    def number(key: str) -> int | None:
        value = source.metadata.get(f"{name}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    tensors = source.tensors.values()
    return Meta(n_ctx_train=number("context_length"), n_embd=number("embedding_length"),
                n_params=sum(math.prod(info.shape) for info in tensors), n_vocab=model.tokenizer.vocab_size,
                size=sum(info.nbytes for info in tensors))


class TokenizerCard(BaseModel):
    """How a model's chats become text, and its texts tokens, by the names of vLLM."""

    tokenizer_class: Literal["GGUFTokenizer"] = "GGUFTokenizer"
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    add_eos_token: bool
    chat_template: str | None


def tokenizer_card(model: ServedModel) -> TokenizerCard:
    """Return the card of a model's tokenizer."""
    tokenizer, template = model.tokenizer, model.running.template

    def text(token: int | None) -> str | None:
        return None if token is None else tokenizer.token_text(token)

    return TokenizerCard(
        model_max_length=model.running.context_length, bos_token=text(tokenizer.bos), eos_token=text(tokenizer.eos),
        add_bos_token=tokenizer.add_bos, add_eos_token=tokenizer.add_eos,
        chat_template=None if template is None else template.source)
