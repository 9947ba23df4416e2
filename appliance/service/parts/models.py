"""The models that a service has, with the schedulers that feed their engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.boot.booted import Booted
from appliance.boot.running.interval import interval_of
from appliance.boot.running.load import RunningModel
from appliance.engine.scheduler import Scheduler
from appliance.policy.schema import Model
from appliance.policy.schema.model import ModelLimits
from appliance.service.admission.tenants import Caller, Roster
from appliance.text.tokenizer import Tokenizer


class OpenAnswers:
    """The answers of a model that have not ended, and the refusal of those to come, once the model
    is taken away from all."""

    def __init__(self) -> None:
        self._ends: set[Callable[[RequestError], None]] = set()
        self._refusal: Callable[[], RequestError] | None = None

    def enter(self, end: Callable[[RequestError], None]) -> Callable[[], None]:
        """Count an answer in, which `end` would end; returns what counts it out. RequestError where
        the model is gone."""
        if self._refusal is not None:
            raise self._refusal()
        self._ends.add(end)
        return lambda: self._ends.discard(end)

    def end(self, refusal: Callable[[], RequestError]) -> None:
        """End all of them, each with a refusal of its own, and refuse others."""
        self._refusal = refusal
        for end in tuple(self._ends):
            end(refusal())


@dataclass(frozen=True)
class ServedModel:
    """A loaded model and the scheduler that feeds its engine."""

    running: RunningModel
    scheduler: Scheduler
    created: int  # when it was loaded: seconds since 1970 by the host's clock
    answers: OpenAnswers = field(default_factory=OpenAnswers, compare=False)

    @property
    def name(self) -> str:
        """The name in requests."""
        return self.running.name

    @property
    def slots(self) -> int:
        """How many sequences its cache has room for."""
        return self.running.engine.concurrent

    @property
    def policy(self) -> Model:
        """Its block of the policy."""
        return self.running.policy

    @property
    def bounds(self) -> ModelLimits:
        """The bounds of its own requests."""
        return self.policy.limits or ModelLimits()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        return self.running.tokenizer


class Models:
    """The models of one service: `loaded` ones take requests, `leaving` ones end their answers, and
    are wiped then."""

    def __init__(self, booted: Booted, roster: Roster) -> None:
        self._booted, self._roster = booted, roster
        self.loaded: dict[str, ServedModel] = {}
        self.leaving: dict[str, ServedModel] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        """Each model with a scheduler that is not closed."""
        return iter((*self.loaded.values(), *self.leaving.values()))

    def serve(self, running: RunningModel) -> ServedModel:
        """Give a loaded model its scheduler, which somebody must close."""
        limits, name, kept = self._booted.policy.limits, running.name, running.policy.prefix_cache
        interval = interval_of(self._booted.policy)
        return ServedModel(running, Scheduler(
            running.engine, tenants=self._roster.askers_of(name), weights=self._roster.weights,
            queue=limits.concurrent_requests * limits.choices,  # prompts that a model has at the same time, at most
            prefix_lifetime=kept.lifetime_ms / 1000 if kept is not None and running.engine.keeps_prefixes else None,
            shelf=None if self._booted.sessions is None else self._booted.sessions.shelf(name),
            cadence=None if interval is None else interval.seconds, hidden=running.policy.speculation == "hidden",
            on_late=lambda: self._booted.audit.counted.late(name)),
            int(hostclock.seconds()))

    def close(self) -> None:
        """End every scheduler that there is, whatever goes wrong with one."""
        with contextlib.ExitStack() as closing:
            for model in self:
                closing.callback(model.scheduler.close)

    def of(self, caller: Caller, name: str) -> ServedModel:
        """Return a loaded model by its name or an alias. RequestError, the same for a model that is
        not in the policy and for a model that the caller may not ask."""
        name = self.known_as(name, caller)
        if not caller.may_ask(name) or all(model.name != name for model in self._booted.policy.models):
            raise RequestError("model_not_found", param="model")
        if name not in self.loaded:
            raise RequestError("model_not_loaded", f"model {name} is not loaded at the moment; loaded: "
                               f"{', '.join(self._names(caller)) or 'none'}", param="model")
        return self.loaded[name]

    def known_as(self, name: str, caller: Caller) -> str:
        """Return the name of the model that an alias stands for: the first of its models that the
        caller may ask, of loaded ones if there are any. Another name stands for itself."""
        stands_for = next((each.models for each in self._booted.policy.aliases if each.name == name), (name,))
        allowed = [each for each in stands_for if caller.may_ask(each)]
        return next(filter(self.loaded.__contains__, allowed), allowed[0] if allowed else name)

    def names(self, caller: Caller) -> list[str]:
        """Return the names that a caller may ask loaded models by, aliases included."""
        aliases = (each.name for each in self._booted.policy.aliases)
        own = [name for name in self.loaded if caller.may_ask(name)]
        return [*own, *(name for name in aliases if self.known_as(name, caller) in own)]

    def only(self, caller: Caller) -> str:
        """Return the name of the model of a caller that may ask one alone; RequestError for
        another."""
        names = self._names(caller)
        if len(names) != 1:
            raise RequestError("missing_required_parameter", "model: this parameter is required; allowed: "
                               f"{', '.join(names) or 'none'}", param="model")
        return names[0]

    def _names(self, caller: Caller) -> list[str]:
        return sorted(filter(caller.may_ask, self.loaded))
