"""The parameters of sampling: one row each, and the policy's bounds on it.

A new one is a row here, which is also its block in the policy from schema 2 on; a file in
`engine/decode/chain/narrowings/`, and its row in the table there. Where other servers had it
before, its row of `ELSEWHERE` ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import create_model

from appliance.policy.schema.base import Block, Enforcers, Field
from appliance.policy.schema.kinds import Kind, Number, Order, Switch, Whole
from appliance.policy.schema.versions import Since


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a request may set. The engine refuses what lies outside of `low` to `high`."""

    name: str
    low: float
    high: float
    off: float  # the engine's and the policy's default: the value that changes nothing
    whole: bool = False  # counts something
    unset: tuple[float, ...] = ()  # what other servers also take for `off`
    aliases: tuple[str, ...] = ()  # other servers' names
    sampler: str = ""  # the sampler that it belongs to, by its name in an order of samplers
    of: str = ""  # the parameter that it adjusts: without that one it has no effect
    most: float | None = None  # what a policy may allow at most; None: `high`
    free: bool = False  # it has no meaning but where an answer goes on with a text: not in chats, nor with a structure
    spells: bool = False  # it reads the bytes of all tokens
    switch: bool = False  # requests may say true for 1 and false for 0
    usual: float | None = None  # what it allows at most by default; None: `most`
    meaning: str = ""  # where schema 2 has its block: what the block bounds


PARAMETERS = (
    Parameter("temperature", 0.0, 100.0, off=1.0, sampler="temperature"),
    Parameter("top_p", 0.0, 1.0, off=1.0, sampler="top_p"),
    Parameter("top_k", 0, 1 << 20, off=0, whole=True, unset=(-1,), sampler="top_k"),
    Parameter("min_p", 0.0, 1.0, off=0.0, sampler="min_p"),
    Parameter("repeat_penalty", 0.01, 100.0, off=1.0, aliases=("repetition_penalty",), sampler="penalties"),
    Parameter("repeat_last_n", 0, 1 << 20, off=64, whole=True, of="repeat_penalty", most=1 << 17, usual=8192, meaning=(
        "How many of the last tokens of prompt and answer `repeat_penalty` looks at; 0: none.")),
    Parameter("frequency_penalty", -100.0, 100.0, off=0.0, sampler="penalties"),
    Parameter("presence_penalty", -100.0, 100.0, off=0.0, sampler="penalties"),
    Parameter("dynatemp_range", 0.0, 100.0, off=0.0, sampler="temperature", most=5, usual=2, meaning=(
        "How far the temperature may go from `temperature`, by the entropy of the candidates; 0: it is constant.")),
    Parameter("dynatemp_exponent", 0.0, 100.0, off=1.0, of="dynatemp_range", most=10, meaning=(
        "The power of the entropy's share that moves the temperature.")),
    Parameter("typical_p", 0.0, 1.0, off=1.0, aliases=("typ_p",), sampler="typ_p", meaning=(
        "Keep the locally typical tokens up to this total probability; 1 keeps all.")),
    Parameter("tfs_z", 0.0, 1.0, off=1.0, aliases=("tfs",), sampler="tfs_z", meaning=(
        "Tail-free sampling: keep tokens up to this share of the curvature of probabilities; 1 keeps all.")),
    Parameter("top_n_sigma", 0.0, 100.0, off=0.0, unset=(-1,), aliases=("nsigma",), sampler="top_n_sigma", meaning=(
        "Keep tokens whose logit lies within this many standard deviations of the highest; 0 keeps all.")),
    Parameter("epsilon_cutoff", 0.0, 10_000.0, off=0.0, sampler="epsilon_cutoff", meaning=(
        "Drop tokens less likely than this, in units of 0.0001; 0 drops none.")),
    Parameter("eta_cutoff", 0.0, 10_000.0, off=0.0, sampler="eta_cutoff", meaning=(
        "Drop tokens less likely than a bound that falls with the entropy, in units of 0.0001; 0 drops none.")),
    Parameter("xtc_probability", 0.0, 1.0, off=0.0, sampler="xtc", meaning=(
        "XTC: how often all tokens above `xtc_threshold` are dropped but the least likely of them; 0: never.")),
    Parameter("xtc_threshold", 0.0, 1.0, off=0.1, of="xtc_probability", meaning=(
        "XTC: the probability above which tokens may be dropped.")),
    Parameter("mirostat", 0, 2, off=0, whole=True, aliases=("mirostat_mode",), meaning=(
        "The version of Mirostat, which replaces all samplers that drop tokens; 0: it is off.")),
    Parameter("mirostat_tau", 0.0, 100.0, off=5.0, aliases=("mirostat_ent",), of="mirostat", most=20, meaning=(
        "The surprise that Mirostat aims at, in bits.")),
    Parameter("mirostat_eta", 0.0, 100.0, off=0.1, aliases=("mirostat_lr",), of="mirostat", most=1, meaning=(
        "How fast Mirostat learns.")),
    Parameter("dry_multiplier", 0.0, 100.0, off=0.0, sampler="dry", most=20, usual=5, meaning=(
        "DRY: the penalty of a token that makes a repetition longer than is allowed; 0 turns it off.")),
    Parameter("dry_base", 1.0, 100.0, off=1.75, of="dry_multiplier", most=10, meaning=(
        "DRY: the factor by which the penalty grows with each repeated token.")),
    Parameter("dry_allowed_length", 0, 1 << 20, off=2, whole=True, of="dry_multiplier", most=1000, meaning=(
        "DRY: the longest repetition without a penalty, in tokens.")),
    Parameter("dry_penalty_last_n", -1, 1 << 20, off=-1, whole=True, of="dry_multiplier", meaning=(
        "DRY: how many of the last tokens of prompt and answer are looked at; -1: all.")),
    Parameter("guidance_scale", 0.0, 100.0, off=1.0, aliases=("cfg_scale",), most=20, usual=5, meaning=(
        "Classifier-free guidance: how far logits go away from those of the negative prompt; 1: it is off. Such a "
        "request takes the places of two.")),
    Parameter("token_healing", 0, 8, off=0, whole=True, free=True, spells=True, switch=True, meaning=(
        "How many tokens at the end of a text may be taken back, for the answer to write their text again; 0: none.")),
)
BY_NAME = {each.name: each for each in PARAMETERS}

# The samplers in llama.cpp's default order, with those that it lacks. `order` has the names of a
# sampler elsewhere, too.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "epsilon_cutoff",
            "eta_cutoff", "xtc", "temperature")
OTHER_NAMES = {
    "temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p", "typical_p": "typ_p",
    "typical-p": "typ_p", "typical": "typ_p", "typ-p": "typ_p", "typ": "typ_p", "nucleus": "top_p", "tfs": "tfs_z",
    "tfs-z": "tfs_z", "top-n-sigma": "top_n_sigma", "dynamic_temperature": "temperature",
    "repetition_penalty": "penalties", "presence_penalty": "penalties", "frequency_penalty": "penalties"}
# Samplers of other servers' orders that are not here: a request that turns one on is refused, so an
# order may name it.
ABSENT_SAMPLERS = frozenset({"top_a", "quadratic_sampling", "encoder_repetition_penalty", "no_repeat_ngram"})
BREAKERS = ("\n", ":", '"', "*")  # of DRY's sequences, where a request names none

# Samplers of other servers, by each of their names, and the values that turn them off: those alone
# are taken.
ELSEWHERE: dict[str, tuple[float, ...]] = {"top_a": (0,)}
IDLE_ELSEWHERE: tuple[str, ...] = ()  # what adjusts one of them: without effect


class Bounds(Block):
    """Bounds on one parameter: `default`, `min` and `max`, of its own kind."""

    ENFORCED_BY: ClassVar[Enforcers] = "policy/bounds"


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


class LengthPenalty(Bounds):
    """Beam search: the power of a text's length by which its log-probability is divided. A higher
    one favours longer texts."""

    default: Annotated[float, Number(-10, 10)] = Field(default=1.0, description="Used where a request says nothing.")
    min: Annotated[float, Number(-10, 10)] = Field(default=-2.0, description="The lowest value a request may ask for.")
    max: Annotated[float, Number(-10, 10)] = Field(default=4.0, description="The highest value a request may ask for.")


def _kind(row: Parameter) -> Kind:
    most = row.high if row.most is None else row.most
    return Whole(int(row.low), int(most)) if row.whole else Number(row.low, most)


def _block(row: Parameter) -> Any:
    """The block of a parameter that schema 2 has. Under schema 1 the program reads its defaults:
    `extended` is false there."""
    kind = _kind(row)
    number: Any = Annotated[int if row.whole else float, kind]
    most = row.high if row.most is None else row.most
    values = {"default": row.off, "min": row.low, "max": most if row.usual is None else row.usual}
    words = {"default": "Used where a request says nothing.", "min": "The lowest value a request may ask for.",
             "max": "The highest value a request may ask for."}
    fields: dict[str, Any] = {
        name: (number, Field(default=kind.parse(value), description=words[name])) for name, value in values.items()}
    block = create_model("".join(part.capitalize() for part in row.name.split("_")), __base__=Bounds,
                         __module__=__name__, __doc__=row.meaning, **fields)
    return block, Field(since=Since(2, block()), default_factory=block, description=f"Bounds on `{row.name}`.")


class _First(Block):
    """Bounds that every version of the language has."""

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


_All = create_model("_All", __base__=_First, **{row.name: _block(row) for row in PARAMETERS if row.meaning})


class Sampling(_All):
    """Bounds on what a request may ask for. A value outside of them is refused, not clamped.
    Defaults are the policy's alone: what a model file advises (`general.sampling.*`) is not looked
    at."""

    extended: Annotated[bool, Switch()] = Field(
        since=Since(2, False), default=True, enforced_by="policy/bounds", description="Whether requests may set the "
        "parameters that schema 1 does not have, and an order of samplers; otherwise the defaults here hold.")
    samplers: Annotated[str, Order(SAMPLERS)] = Field(
        since=Since(2, ";".join(SAMPLERS)), default=";".join(SAMPLERS), enforced_by="policy/bounds",
        description="The samplers in their order, with semicolons between them, where a request names none. A sampler "
        "that an order leaves out is off.")
    max_beams: Annotated[int, Whole(0, 128)] = Field(
        since=Since(2, 0), default=0, enforced_by="service/answering/choices", description="How many texts a beam "
        "search may go on with at the same time; each takes a place, and `limits.choices` holds, too. 0: requests may "
        "not ask for beam search.")
    length_penalty: LengthPenalty = Field(
        since=Since(2, LengthPenalty()), default_factory=LengthPenalty, description="Bounds on `length_penalty`.")
    max_logprobs: Annotated[int, Whole(0, 20)] = Field(
        default=0, enforced_by="service/admission/sampling", description="How many alternatives with log-probabilities "
        "a request may ask for at each token; 0: none, not even the chosen token's own.")
