"""The parameters of sampling: one row each, and the policy's bounds on it.

A new one is a row and a block here, a field and a place in the chain of `engine/decode/sampler.py`,
and a file in `engine/decode/chain/`. Where other servers had it before, its row of `ELSEWHERE`
ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from appliance.policy.schema.base import Block, Enforcers, Field
from appliance.policy.schema.kinds import Number, Whole


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a request may set. The engine refuses what lies outside of `low` to `high`."""

    name: str
    low: float
    high: float
    off: float  # the value that changes nothing
    whole: bool = False  # counts something
    bounded: bool = True  # by the policy; else a constant of the engine
    unset: tuple[float, ...] = ()  # what other servers also take for `off`
    aliases: tuple[str, ...] = ()  # other servers' names


PARAMETERS = (
    Parameter("temperature", 0.0, 100.0, off=1.0),
    Parameter("top_p", 0.0, 1.0, off=1.0),
    Parameter("top_k", 0, 1 << 20, off=0, whole=True, unset=(-1,)),
    Parameter("min_p", 0.0, 1.0, off=0.0),
    Parameter("repeat_penalty", 0.01, 100.0, off=1.0, aliases=("repetition_penalty",)),
    Parameter("repeat_last_n", 0, 1 << 20, off=0, whole=True, bounded=False),
    Parameter("frequency_penalty", -100.0, 100.0, off=0.0),
    Parameter("presence_penalty", -100.0, 100.0, off=0.0),
)
BOUNDED = tuple(each.name for each in PARAMETERS if each.bounded)

# Samplers of other servers, by each of their names, and the values that turn them off: those alone
# are taken.
ELSEWHERE: dict[str, tuple[float, ...]] = {
    "typical_p": (1,), "typ_p": (1,), "tfs_z": (1,), "top_a": (0,), "top_n_sigma": (-1, 0), "mirostat": (0,),
    "mirostat_mode": (0,), "dynatemp_range": (0,), "dry_multiplier": (0,), "xtc_probability": (0,),
}


class Bounds(Block):
    """Bounds on one parameter: `default`, `min` and `max`, of its own kind."""

    ENFORCED_BY: ClassVar[Enforcers] = "service/answering/admit"


class Temperature(Bounds):
    """Sampling temperature; 0 is greedy."""

    default: Annotated[float, Number(0, 5)] = Field(default=0.8, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 5)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 5)] = Field(default=2.0, description="The highest value a request may ask for.")


class TopP(Bounds):
    """Nucleus sampling: keep the likeliest tokens up to this total probability; 1 keeps all."""

    default: Annotated[float, Number(0, 1)] = Field(default=0.95, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 1)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 1)] = Field(default=1.0, description="The highest value a request may ask for.")


class TopK(Bounds):
    """Keep only this many of the likeliest tokens; 0 keeps all."""

    default: Annotated[int, Whole(0, 1_000_000)] = Field(default=40, description="Used where a request says nothing.")
    min: Annotated[int, Whole(0, 1_000_000)] = Field(default=0, description="The lowest value a request may ask for.")
    max: Annotated[int, Whole(0, 1_000_000)] = Field(
        default=1_000_000, description="The highest value a request may ask for.")


class MinP(Bounds):
    """Drop tokens less likely than this share of the likeliest one's probability; 0 drops none."""

    default: Annotated[float, Number(0, 1)] = Field(default=0.05, description="Used where a request says nothing.")
    min: Annotated[float, Number(0, 1)] = Field(default=0.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0, 1)] = Field(default=1.0, description="The highest value a request may ask for.")


class RepeatPenalty(Bounds):
    """Make tokens less likely that are among the last 64 of prompt and answer, by this factor; 1
    does nothing."""

    default: Annotated[float, Number(0.1, 10)] = Field(default=1.0, description="Used where a request says nothing.")
    min: Annotated[float, Number(0.1, 10)] = Field(default=0.5, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(0.1, 10)] = Field(default=2.0, description="The highest value a request may ask for.")


class Penalty(Bounds):
    """Subtract from the logits of tokens that the answer has already, not of those of the prompt; 0
    does nothing."""

    default: Annotated[float, Number(-2, 2)] = Field(default=0.0, description="Used where a request says nothing.")
    min: Annotated[float, Number(-2, 2)] = Field(default=-2.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(-2, 2)] = Field(default=2.0, description="The highest value a request may ask for.")


class Sampling(Block):
    """Bounds on what a request may ask for. A value outside of them is refused, not clamped.
    Defaults are the policy's alone: what a model file advises (`general.sampling.*`) is not looked
    at."""

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
        default=0, enforced_by="service/answering/admit", description="How many alternatives with log-probabilities a "
        "request may ask for at each token; 0: none, not even the chosen token's own.")
