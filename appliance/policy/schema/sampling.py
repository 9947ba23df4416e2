"""The parameters of sampling, and the policy's bounds on them.

A new one is a field of `SamplingSettings`. A new sampler also gets a place in `SAMPLERS`, and a
file of that name in `engine/decode/chain/narrowings/`. If other servers had it before, its row of
`ELSEWHERE` ends. Names in requests, the policy's map of bounds, the engine's checks, refusals and
words of the audit log follow from the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from appliance.policy.schema.base import Block, Enforcers, Field, PerLabel
from appliance.policy.schema.kinds import MAX_INTEGER, Kind, Number, Order, Pick, Switch, Whole
from appliance.policy.schema.versions import Since, Until


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A number that a request may set. The engine refuses what lies outside of `low` to `high`."""

    name: str
    whole: bool  # counts something
    low: float
    high: float
    off: float  # the engine's default: the value that changes nothing
    unset: tuple[float, ...] = ()  # what other servers also take for `off`
    aliases: tuple[str, ...] = ()  # other servers' names
    sampler: str = ""  # the sampler that it belongs to, by its name in an order of samplers
    of: str = ""  # the parameter that it adjusts: without that one it has no effect
    free: bool = False  # it has no meaning but where an answer goes on with a text: not in chats, nor with a structure
    spells: bool = False  # it reads the bytes of all tokens
    switch: bool = False  # requests may say true for 1 and false for 0
    since: int = 2  # the first version of the policy language that bounds it
    allowed: tuple[float, float] | None = None  # between which numbers a policy may bound it; None: `low` to `high`
    usual: tuple[float, float] | None = None  # the bounds of a policy that says nothing; None: all that is allowed
    default: float | None = None  # the default of a policy that says nothing; None: `off`

    @property
    def why_free(self) -> str:
        """The reason why a chat or a structured answer cannot have a `free` parameter."""
        return ("only texts that go on freely can have it, neither chats nor structured answers; allowed there is "
                f"{self.off:.15g} or null")

    @property
    def kind(self) -> Kind:
        """The numbers that a policy may name."""
        low, high = self.allowed or (self.low, self.high)
        return Whole(int(low), int(high)) if self.whole else Number(low, high)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Default, lowest and highest value of a policy that says nothing."""
        least, most = self.usual or self.allowed or (self.low, self.high)
        default = self.off if self.default is None else self.default
        return self.kind.parse(default), self.kind.parse(least), self.kind.parse(most)


def _number(low: float, high: float, off: float, **more: Any) -> Any:
    """Declare a parameter: a field of a dataclass, with what `Setting` has."""
    return field(default=off, metadata={"low": low, "high": high, "off": off, **more})


def _rows(cls: type) -> dict[str, Setting]:
    """Return the parameters that a class declares, by name."""
    return {each.name: Setting(name=each.name, whole=each.type == "int", **each.metadata) for each in fields(cls)}


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The parameters of sampling by their names in requests. The defaults change nothing."""

    temperature: float = _number(
        0.0, 100.0, 1.0, sampler="temperature", since=1, allowed=(0, 5), usual=(0, 2), default=0.8)
    """The sampling temperature; 0 is greedy."""
    top_p: float = _number(0.0, 1.0, 1.0, sampler="top_p", since=1, default=0.95)
    """The total probability of the likeliest tokens, which are kept (nucleus sampling); 1 keeps
    all."""
    top_k: int = _number(0, 1 << 20, 0, unset=(-1,), sampler="top_k", since=1, allowed=(0, 1_000_000), default=40)
    """The number of the likeliest tokens, which are kept; 0 keeps all."""
    min_p: float = _number(0.0, 1.0, 0.0, sampler="min_p", since=1, default=0.05)
    """The share of the likeliest token's probability below which tokens are dropped; 0 drops none.
    """
    repeat_penalty: float = _number(
        0.01, 100.0, 1.0, aliases=("repetition_penalty",), sampler="penalties", since=1, allowed=(0.1, 10),
        usual=(0.5, 2))
    """The factor that makes tokens less likely which are among the last 64 (`repeat_last_n`) of
    prompt and answer; 1 does nothing."""
    repeat_last_n: int = _number(0, 1 << 20, 64, of="repeat_penalty", allowed=(0, 1 << 17), usual=(0, 8192))
    """The number of last tokens of prompt and answer that `repeat_penalty` looks at; 0: none."""
    frequency_penalty: float = _number(-100.0, 100.0, 0.0, sampler="penalties", since=1, allowed=(-2, 2))
    """The number that is subtracted from a token's logit for each time that the answer has it.
    Tokens of the prompt do not count; 0 does nothing."""
    presence_penalty: float = _number(-100.0, 100.0, 0.0, sampler="penalties", since=1, allowed=(-2, 2))
    """The number that is subtracted once from the logits of tokens that the answer has. Tokens of
    the prompt do not count; 0 does nothing."""
    dynatemp_range: float = _number(0.0, 100.0, 0.0, sampler="temperature", allowed=(0, 5), usual=(0, 2))
    """The distance that the temperature may go from `temperature`, by the entropy of the
    candidates; 0: it is constant."""
    dynatemp_exponent: float = _number(0.0, 100.0, 1.0, of="dynatemp_range", allowed=(0, 10))
    """The power of the entropy's share that moves the temperature."""
    typical_p: float = _number(0.0, 1.0, 1.0, aliases=("typ_p",), sampler="typ_p")
    """The total probability of the locally typical tokens, which are kept; 1 keeps all."""
    tfs_z: float = _number(0.0, 1.0, 1.0, aliases=("tfs",), sampler="tfs_z")
    """The share of the curvature of probabilities up to which tokens are kept (tail-free sampling);
    1 keeps all."""
    top_n_sigma: float = _number(0.0, 100.0, 0.0, unset=(-1,), aliases=("nsigma",), sampler="top_n_sigma")
    """The number of standard deviations from the highest logit within which tokens are kept; 0
    keeps all."""
    epsilon_cutoff: float = _number(0.0, 10_000.0, 0.0, sampler="epsilon_cutoff")
    """The probability below which tokens are dropped, in units of 0.0001; 0 drops none."""
    eta_cutoff: float = _number(0.0, 10_000.0, 0.0, sampler="eta_cutoff")
    """The probability below which tokens are dropped, in units of 0.0001, where the entropy is low;
    it falls with the entropy. 0 drops none."""
    xtc_probability: float = _number(0.0, 1.0, 0.0, sampler="xtc")
    """XTC: the probability that of all tokens above `xtc_threshold` only the least likely is kept;
    0: never."""
    xtc_threshold: float = _number(0.0, 1.0, 0.1, of="xtc_probability")
    """XTC: the probability above which tokens may be dropped."""
    mirostat: int = _number(0, 2, 0, aliases=("mirostat_mode",))
    """The version of Mirostat, which replaces all samplers that drop tokens; 0: it is off."""
    mirostat_tau: float = _number(0.0, 100.0, 5.0, aliases=("mirostat_ent",), of="mirostat", allowed=(0, 20))
    """The surprise that Mirostat aims at, in bits."""
    mirostat_eta: float = _number(0.0, 100.0, 0.1, aliases=("mirostat_lr",), of="mirostat", allowed=(0, 1))
    """The speed with which Mirostat learns."""
    dry_multiplier: float = _number(0.0, 100.0, 0.0, sampler="dry", allowed=(0, 20), usual=(0, 5))
    """DRY: the penalty of a token that makes a repetition longer than is allowed; 0 turns it off.
    """
    dry_base: float = _number(1.0, 100.0, 1.75, of="dry_multiplier", allowed=(1, 10))
    """DRY: the factor by which the penalty grows with each repeated token."""
    dry_allowed_length: int = _number(0, 1 << 20, 2, of="dry_multiplier", allowed=(0, 1000))
    """DRY: the longest repetition without a penalty, in tokens."""
    dry_penalty_last_n: int = _number(-1, 1 << 20, -1, of="dry_multiplier")
    """DRY: the number of last tokens of prompt and answer that are looked at; -1: all."""
    guidance_scale: float = _number(0.0, 100.0, 1.0, aliases=("cfg_scale",), allowed=(0, 20), usual=(0, 5))
    """Classifier-free guidance: the factor by which logits go away from those of the negative
    prompt; 1: it is off. Such a request takes the places of two."""
    token_healing: int = _number(0, 8, 0, free=True, spells=True, switch=True)
    """The number of tokens at the end of a text that may be taken back, for the answer to write
    their text again; 0: none."""


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """The parameters of beam search by their names in requests."""

    length_penalty: float = _number(-10.0, 10.0, 1.0, usual=(-2, 4))
    """Beam search: the power of a text's length by which its log-probability is divided. A higher
    one favours longer texts."""


BY_NAME = _rows(SamplingSettings)
PARAMETERS = tuple(BY_NAME.values())
_BOUNDED = BY_NAME | _rows(BeamSettings)  # what a policy bounds

# The samplers in llama.cpp's default order, with those that it lacks. `order` has the names of a
# sampler elsewhere, too.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "epsilon_cutoff",
            "eta_cutoff", "xtc", "temperature")
ADJUSTERS = frozenset({"penalties", "dry", "temperature"})  # they change logits; the others drop tokens
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


_ANY = PerLabel(-MAX_INTEGER, MAX_INTEGER, {name: row.kind for name, row in _BOUNDED.items()})


def _each(part: int) -> dict[str, float]:
    """Return what each parameter has at a place of `Setting.bounds`."""
    return {name: row.bounds[part] for name, row in sorted(_BOUNDED.items())}


class Bound(Block):
    """The bound on one parameter of requests, such as `bound "top_p" { max = 0.9 }`. A parameter
    without such a block has the bounds below."""

    ENFORCED_BY: ClassVar[Enforcers] = "policy/bounds"
    LABEL: ClassVar[str | None] = "name"
    LABELS: ClassVar[tuple[str, ...]] = tuple(sorted(_BOUNDED))

    name: Annotated[str, Pick(LABELS)] = Field(description="The parameter's name in requests.")
    default: Annotated[float, _ANY] = Field(default=_each(0), description="Used where a request says nothing.")
    min: Annotated[float, _ANY] = Field(default=_each(1), description="The lowest value a request may ask for.")
    max: Annotated[float, _ANY] = Field(default=_each(2), description="The highest value a request may ask for.")

    @classmethod
    def usual(cls, name: str) -> Bound:
        """Return the bound of a policy that says nothing of a parameter."""
        default, least, most = _BOUNDED[name].bounds
        return cls.model_construct(name=name, default=default, min=least, max=most)


def _former(name: str) -> Any:
    """Define the block of schema 1 that bounds a parameter."""
    return Field(until=Until(1, f'write bound "{name}" {{ ... }} (`appliance check --upgrade FILE` does)'),
                 default_factory=lambda: Bound.usual(name), description=f"Bounds on `{name}`.")


def _of_schema_1(others: Mapping[str, Any]) -> tuple[Bound, ...]:
    """Return the bounds of a block of schema 1: its own, and the usual ones on what came later."""
    return tuple(others[name] if row.since == 1 else Bound.usual(name) for name, row in sorted(_BOUNDED.items()))


class SamplingBounds(Block):
    """Bounds on what a request may ask for. A value outside of them is refused, not clamped.
    Defaults are the policy's alone: what a model file advises (`general.sampling.*`) is not looked
    at."""

    temperature: Bound = _former("temperature")  # the program reads `bounds`, under either schema
    top_p: Bound = _former("top_p")
    top_k: Bound = _former("top_k")
    min_p: Bound = _former("min_p")
    repeat_penalty: Bound = _former("repeat_penalty")
    frequency_penalty: Bound = _former("frequency_penalty")
    presence_penalty: Bound = _former("presence_penalty")
    bounds: tuple[Bound, ...] = Field(
        alias="bound", since=Since(2, derive=_of_schema_1),
        default_factory=lambda: tuple(map(Bound.usual, sorted(_BOUNDED))),
        description="Bounds on one parameter of requests, by its name there.")
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
    max_logprobs: Annotated[int, Whole(0, 20)] = Field(
        default=0, enforced_by="service/admission/sampling", description="How many alternatives with log-probabilities "
        "a request may ask for at each token; 0: none, not even the chosen token's own.")

    def bound(self, name: str) -> Bound:
        """Return the bound on a parameter, which stays off if the policy's schema lacks it."""
        off = _BOUNDED[name].off
        return next((each for each in self.bounds if each.name == name),
                    Bound.model_construct(name=name, default=off, min=off, max=off))
