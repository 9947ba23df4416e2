"""One change of the loaded models at a time.

    fit       memory is reckoned anew; what does not fit is refused with the sum
    load      in a thread, authenticated and checked as at boot; what fails leaves all as it was
    swap      at one moment of the event loop: a new generation is attested, new requests find the new model, and
              none finds the one that leaves
    end       the answers of the leaving model end on it, within `service.drain_timeout`: those that are left then end
              with an error; then its scheduler ends, and its memory is wiped

A change that has begun goes on when its client leaves, and is given up when the service ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from appliance.api.problems import RequestError
from appliance.boot.booted import Booted
from appliance.boot.running.declared import ModelLoader
from appliance.boot.running.load import RunningModel
from appliance.errors import ApplianceError, AuditError, shortage
from appliance.service.loading.tenant_lists import TenantLists
from appliance.service.loading.wire import Change, DeclaredModel, DeclaredModels
from appliance.service.parts.models import ServedModel
from appliance.service.parts.wiring import Wiring

STEP_SECONDS = 0.02  # from one look at a leaving model's answers to the next
OUR_REFUSALS = ("memory", "memory-lock", "plaintext-budget")  # codes that tell of the machine, not of the file


class Changes:
    """Loads and unloads models of one service. On its event loop, but for the loading itself."""

    def __init__(self, service: Wiring) -> None:
        self._service = service
        self.lists = TenantLists(service, lambda: self.renew())
        self._loading: str | None = None
        self._busy = False
        self._tasks: set[asyncio.Task[object]] = set()
        # New keys for listeners whose certificates have evidence: it is of the generation before.
        self.renew: Callable[[], Awaitable[None]] = _nothing

    @property
    def _booted(self) -> Booted:
        return self._service.booted

    def overview(self) -> DeclaredModels:
        """The state of each declared model."""
        return DeclaredModels(generation=self._booted.attestor.state.generation, data=[
            DeclaredModel(id=model.name, load=model.load, state=self._state(model.name), sha256=model.sha256)
            for model in self._booted.policy.models])

    def _state(self, name: str) -> str:
        models = self._service.models
        if name in models.loaded:
            return "loaded"
        return "unloading" if name in models.leaving else "loading" if name == self._loading else "unloaded"

    async def change(self, change: Change, asker: Mapping[str, str]) -> DeclaredModels:
        """Carry a change out, and wait until the new generation is attested; answers of a model
        that leaves may go on after it. Records of it have the fields of `asker`. RequestError where
        it cannot be made: nothing has changed then."""
        if self._busy:
            raise RequestError("models_changing")
        self._check(change)
        self._busy = True
        task = asyncio.ensure_future(self._change(change, asker))
        self._keep(task)
        task.add_done_callback(_look)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the client has left, and the change goes on
            raise RequestError("shutting_down") from None

    def _check(self, change: Change) -> None:
        """RequestError for models that cannot come or go, or are there already."""
        declared = self._booted.declared
        changing = {} if declared is None else declared.changing
        for param, name in (("load", change.load), ("unload", change.unload)):
            if name is not None and name not in changing:
                raise RequestError("invalid_value", f"{param}: allowed: a model that the policy lets come and go "
                                   f'(load = "boot" or "demand"): {", ".join(sorted(changing)) or "there is none"}',
                                   param=param)
        if change.load is not None and self._state(change.load) != "unloaded":
            raise RequestError("model_in_use", f"load: the model {change.load} is {self._state(change.load)}",
                               param="load")
        if change.unload is not None and self._state(change.unload) != "loaded":
            raise RequestError("model_in_use", f"unload: the model {change.unload} is {self._state(change.unload)}",
                               param="unload")

    async def _change(self, change: Change, asker: Mapping[str, str]) -> DeclaredModels:
        self._loading = change.load
        try:
            found = None if change.load is None else await self._load(change.load, asker)
            self._loading = None
            self._swap(found, change.unload, asker)
            await self.renew()
            return self.overview()
        except AuditError as error:
            self._service.readiness.lose_audit(error)
            raise RequestError("audit_unavailable") from None
        finally:
            self._loading, self._busy = None, False

    async def _load(self, name: str, asker: Mapping[str, str]) -> RunningModel:
        """The model, with its pins checked. RequestError with the sum where memory does not
        suffice; a file's fault is told by its code alone."""
        declared, running = self._booted.declared, dict(self._booted.models)
        if declared is None:
            raise TypeError("a model without a policy that declares it")
        work = asyncio.ensure_future(asyncio.to_thread(_prepare, declared, name, running))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            declared.end()
            work.add_done_callback(_drop)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the others answer on
            known = shortage(error) or error
            code = known.code if isinstance(known, ApplianceError) else "boot-internal"
            if not isinstance(known, ApplianceError):
                self._booted.silence.exception("request", type(error), error.__traceback__)
            fits = not (isinstance(known, ApplianceError) and known.code in OUR_REFUSALS)
            refused = "model_load_failed" if fits else "model_in_use"
            self._booted.audit.write("model.refused", model=name, code=refused, **asker)
            self._service.readiness.tell("model_refused", model=name, code=code)
            words = f"model {name}: not loaded: {code}; what was loaded before answers on"
            raise RequestError(refused, words if fits else f"load: {known}", param="load") from None

    def _swap(self, found: RunningModel | None, unload: str | None, asker: Mapping[str, str]) -> None:
        """A new generation, in which one model is there and the other is not."""
        service, booted = self._service, self._booted
        served = None if found is None else self._take(found)
        leaving = None if unload is None else service.models.loaded.pop(unload)
        if served is not None:
            service.models.loaded[served.name] = served
        generation = booted.attestor.new_generation(each.running.bound() for each in service.models.loaded.values())
        if leaving is not None:
            service.models.leaving[leaving.name] = leaving
            self._keep(asyncio.ensure_future(self._end(leaving, asker)))
            service.readiness.tell("model_unloaded", model=leaving.name, generation=generation)
        if served is not None:
            service.books.metrics.watch_model(served, service.traffic)
            service.readiness.forget_failure(served.name)
            service.readiness.tell("model_loaded", model=served.name, generation=generation)
            booted.audit.write("model.loaded", model=served.name, sha256=served.running.pin.hex(),
                               generation=generation, **asker)
        if leaving is not None:
            booted.audit.write("model.unloaded", model=leaving.name, generation=generation, **asker)

    def _take(self, found: RunningModel) -> ServedModel:
        """Give a model its scheduler; who closes the appliance closes it from here on."""
        try:
            served = self._service.models.serve(found)
        except BaseException:
            found.close()
            if self._booted.declared is not None:
                self._booted.declared.forget(found.name)
            raise
        self._booted.models[found.name] = found
        return served

    async def _end(self, leaving: ServedModel, asker: Mapping[str, str]) -> None:
        """Let its answers end, and wipe it."""
        service, name, loop = self._service, leaving.name, asyncio.get_running_loop()
        until = loop.time() + service.policy.service.drain_timeout_ms / 1000
        while service.traffic.of(name) and loop.time() < until:
            await asyncio.sleep(STEP_SECONDS)
        leaving.answers.end(lambda: RequestError(
            "model_not_loaded", f"model {name} was unloaded, and the time that answers have to end, "
            "service.drain_timeout, is over", param="model"))
        await asyncio.to_thread(leaving.scheduler.close)
        service.constraints.forget(name)
        await asyncio.to_thread(leaving.running.close)
        del service.models.leaving[name], self._booted.models[name]
        if self._booted.declared is not None:
            self._booted.declared.forget(name)
        service.books.metrics.forget_model(name)
        try:
            self._booted.audit.write("model.wiped", model=name, **asker)
        except AuditError as error:
            service.readiness.lose_audit(error)

    def stop(self) -> None:
        """The service ends: what is being loaded is given up, and leaving models are left to who
        closes the appliance."""
        if self._booted.declared is not None:
            self._booted.declared.end()
        for task in tuple(self._tasks):
            task.cancel()

    def _keep(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _prepare(declared: ModelLoader, name: str, running: dict[str, RunningModel]) -> RunningModel:
    found = declared.load(name, running)
    found.prepare()
    return found


def _drop(work: asyncio.Future[RunningModel]) -> None:
    """Close a model that was loaded for nobody."""
    if not work.cancelled() and work.exception() is None:
        work.result().close()


def _look(task: asyncio.Task[DeclaredModels]) -> None:
    """Nobody may be left to hear how a change ended."""
    task.cancelled() or task.exception()


async def _nothing() -> None:
    """No listener has a certificate with evidence."""
