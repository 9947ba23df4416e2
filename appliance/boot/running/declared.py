"""Models that the policy declares, loaded and let go while the service runs.

A model that comes later is loaded as at boot: its file is read once, whole or by authenticated
tiles, and checked against the policy's pins. No other file can be loaded: the sandbox opens those
of the policy alone. The self-test of the boot covered the kernels of every declared model. Memory
is reckoned anew, beside the models that stay, which keep their shares.

Keys of sealed models that may come again stay in memory until the process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.boot.planning import budget
from appliance.boot.planning.budget import Division
from appliance.boot.planning.footprint import Share
from appliance.boot.running import load
from appliance.boot.running.interval import interval_of
from appliance.boot.running.load import Loading, RunningModel
from appliance.errors import BootError
from appliance.kernels.runtime.table import KernelTable
from appliance.keys.providers import Secret
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy
from appliance.policy.schema import Model
from appliance.secure import locked


@dataclass
class ModelLoader:
    """The policy's models, and all that loading one takes. `load` may run in a thread of its own,
    once at a time."""

    policy: Policy
    catalogue: Catalogue
    kernels: KernelTable
    tested: frozenset[str] | None  # block formats that the self-test covered; None is all
    division: Division  # of the boot
    keys: Mapping[str, Secret] = field(repr=False)  # of sealed models that may come again
    shares: dict[str, Share] = field(default_factory=dict)  # of models that are loaded
    ending: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.shares = dict(self.division.shares)

    @property
    def changing(self) -> dict[str, Model]:
        """The models that may come and go, by name."""
        return {model.name: model for model in self.policy.models if model.load != "always"}

    def fit(self, name: str) -> Division:
        """Divide what the loaded models leave. BootError where it does not suffice, with the sum.
        """
        found = budget.divide(self.policy, self.catalogue, self.division.room, models=[self.changing[name]],
                              beside=self.shares, compiles=self.kernels.origin != "ahead")
        if found.refusal is not None:
            raise BootError(f"memory: {found.refusal}", code="memory",
                            hint="unload another model before, or plan with `appliance plan-memory`")
        return found

    def load(self, name: str, running: Mapping[str, RunningModel]) -> RunningModel:
        """Load a model beside those that are `running`. Raises BootError, ModelError, EngineError
        or OSError; nothing of it stays then."""
        model, share = self.changing[name], self.fit(name).shares[name]
        self.shares[name] = share
        try:
            found = load.load(model, self.catalogue.of(model), Loading(
                self.policy.limits, self._go_on, tested=self.tested, key=self._key(name), kernels=self.kernels,
                share=share, plaintext_budget=load.plaintext_left(self.policy, running),
                interval=interval_of(self.policy), sweeps=self.policy.privacy.memory_access == "oblivious"))
            try:
                self._go_on(0, 0)
                missing = None if self.policy.simulated else locked.shortfall()
                if missing is not None:
                    raise BootError(f"memory: {missing}", code="memory-lock")
            except BaseException:
                found.close()
                raise
            return found
        except BaseException:
            self.forget(name)
            raise

    def forget(self, name: str) -> None:
        """A model's memory was given back."""
        self.shares.pop(name, None)

    def end(self) -> None:
        """Have a model that is being read given up."""
        self.ending.set()

    def wipe(self) -> None:
        """Forget the keys."""
        self.end()
        for key in self.keys.values():
            key.wipe()

    def _go_on(self, _done: int, _total: int) -> None:
        if self.ending.is_set():
            raise BootError("the service ends", code="shutting-down")

    def _key(self, name: str) -> Secret | None:
        """A copy, which loading wipes."""
        kept = self.keys.get(name)
        return None if kept is None else kept.copy()


def copies(policy: Policy, keys: Mapping[str, Secret]) -> dict[str, Secret]:
    """Copies of the keys of sealed models that may come again, before loading wipes them."""
    return {model.name: keys[model.name].copy() for model in policy.models
            if model.load != "always" and model.name in keys}
