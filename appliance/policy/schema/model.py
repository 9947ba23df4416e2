"""The `model` block: which model runs, and how."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from appliance.policy.schema.base import Block
from appliance.policy.schema.identifiers import NAME, Hash, Path, Tagged, Text
from appliance.policy.schema.keys import Key
from appliance.policy.schema.kinds import Choice, Flag, Number, Whole

StreamingDecrypt = Literal[True, False, "auto"]


class Publisher(Block):
    """Who vouches for the model: an Ed25519 signature over its pin, raw or as an OpenSSF model-signing bundle."""

    public_key: Annotated[str, Tagged("ed25519", 32)] = Field(description="The publisher's public key.")
    signature: Annotated[str | None, Tagged("ed25519", 64, "signature")] = Field(
        default=None, description="The signature over the pin; or else `bundle`.")
    bundle: Annotated[str | None, Path()] = Field(
        default=None, description="The signature bundle's file, beside the model; or else `signature`.")


class Temperature(Block):
    """Sampling temperature; 0 is greedy."""

    default: Annotated[float, Number(0, 5)] = Field(default=0.8, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 5)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 5)] = Field(default=2.0, description="The highest value a request may ask for.")


class TopP(Block):
    """Nucleus sampling: keep the likeliest tokens up to this total probability; 1 keeps all."""

    default: Annotated[float, Number(0, 1)] = Field(default=0.95, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 1)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 1)] = Field(default=1.0, description="The highest value a request may ask for.")


class TopK(Block):
    """Keep only this many of the likeliest tokens; 0 keeps all."""

    default: Annotated[int, Whole(0, 1_000_000)] = Field(default=40, description="Used where a request says nothing.")
    min: Annotated[int, Whole(0, 1_000_000)] = Field(default=0, description="The lowest value a request may ask for.")
    max: Annotated[int, Whole(0, 1_000_000)] = Field(
        default=1_000_000, description="The highest value a request may ask for.")


class MinP(Block):
    """Drop tokens less likely than this share of the likeliest one's probability; 0 drops none."""

    default: Annotated[float, Number(0, 1)] = Field(default=0.05, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 1)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 1)] = Field(default=1.0, description="The highest value a request may ask for.")


class RepeatPenalty(Block):
    """Make tokens less likely that are among the last 64 of prompt and answer, by this factor; 1 does nothing."""

    default: Annotated[float, Number(0.1, 10)] = Field(default=1.0, description="Used where a request says nothing.")
    min: Annotated[float, Number(0.1, 10)] = Field(default=0.5, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0.1, 10)] = Field(default=2.0, description="The highest value a request may ask for.")


class Penalty(Block):
    """Subtract from the logits of tokens that the answer has already, not of those of the prompt; 0 does nothing."""

    default: Annotated[float, Number(-2, 2)] = Field(default=0.0, description="Used where a request says nothing.")
    min: Annotated[float, Number(-2, 2)] = Field(default=-2.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(-2, 2)] = Field(default=2.0, description="The highest value a request may ask for.")


class Sampling(Block):
    """Bounds on what a request may ask for. A value outside of them is refused, not clamped. Defaults are the policy's
    alone: what a model file advises (`general.sampling.*`) is not looked at."""

    temperature: Temperature = Field(default_factory=Temperature, description="Bounds on `temperature`.")
    top_p: TopP = Field(default_factory=TopP, description="Bounds on `top_p`.")
    top_k: TopK = Field(default_factory=TopK, description="Bounds on `top_k`.")
    min_p: MinP = Field(default_factory=MinP, description="Bounds on `min_p`.")
    repeat_penalty: RepeatPenalty = Field(default_factory=RepeatPenalty, description="Bounds on `repeat_penalty`.")
    frequency_penalty: Penalty = Field(
        default_factory=Penalty,
        description="Bounds on `frequency_penalty`, which counts how often an answer has a token.")
    presence_penalty: Penalty = Field(
        default_factory=Penalty, description="Bounds on `presence_penalty`, which counts a token of an answer once.")
    max_logprobs: Annotated[int, Whole(0, 20)] = Field(
        default=0, description="How many alternatives with log-probabilities a request may ask for at each token; "
        "0: none, not even the chosen token's own.")


class Model(Block):
    """A model that the appliance serves. The label is the name by which requests ask for it."""

    LABEL: ClassVar[str | None] = "name"

    name: Annotated[str, NAME] = Field(description="The name in requests and in `/v1/models`.")
    file: Annotated[str, Path()] = Field(
        description="The GGUF or sealed file, in the policy's folder or in the model folder. The disk is not trusted: "
        "the pins decide.")
    sha256: Annotated[str, Hash(256)] = Field(
        description="SHA-256 of the plaintext GGUF file (`appliance model pin FILE` prints it).")
    sealed_header_sha256: Annotated[str | None, Hash(256)] = Field(
        default=None, description="SHA-256 of the sealed file's header; makes the model a sealed one. The plaintext "
        "pin stays: a header alone would let another model under the same key be swapped in.")
    publisher: Publisher | None = Field(default=None, description="A signature that must verify before the model runs.")
    key: Key | None = Field(default=None, description="Where the key of a sealed model comes from.")
    streaming_decrypt: Annotated[StreamingDecrypt, Choice((True, False, "auto"))] = Field(
        default="auto", description="`true`: plaintext weights never exceed `plaintext_budget`, whatever memory there "
        "is. `false`: resident, or refuse to boot. `\"auto\"`: resident as far as the memory budget goes.")
    access_pattern: Annotated[Literal["hidden", "leaks"], Choice(("hidden", "leaks"))] = Field(
        default="hidden", description="`\"leaks\"` accepts that the operator of the disk sees which embedding rows "
        "and experts are read, which tells what the text is about, for speed.")
    context_length: Annotated[int, Whole(1, 16_777_216)] = Field(
        default=32_768, description="Upper bound on the context in tokens; the model's own limit holds where lower.")
    kv_cache: Annotated[Literal["f16", "q8", "q4"], Choice(("f16", "q8", "q4"))] = Field(
        default="f16", description="How keys and values are kept: 16, 8 or 4 bits each.")
    draft_model: Annotated[str | None, NAME] = Field(
        default=None, description="Another model of this policy that proposes tokens; the output stays the same.")
    sampling: Sampling = Field(default_factory=Sampling, description="Bounds on sampling parameters.")
    chat_template: Annotated[str | None, Text(1, 262_144)] = Field(
        default=None, description="A Jinja chat template to use instead of the model's own.")
    chat_template_fallback: Annotated[Literal["refuse", "chatml"], Choice(("refuse", "chatml"))] = Field(
        default="refuse", description="What to do with chats where neither the policy nor the model has a chat "
        "template: refuse them (the model then continues prompts only), or use ChatML.")
    context_shift: Annotated[bool, Flag()] = Field(
        default=False, description="When the context is full, drop the oldest half of the conversation and go on; "
        "otherwise the generation ends with `length`.")
    session_persistence: Annotated[bool, Flag()] = Field(
        default=False, description="Keep a conversation's KV cache, sealed, on the state disk between requests.")
