"""The parts of a running service: everything that a handler may use, put together once in `app.py`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from appliance.api import problems
from appliance.api.adapters import parameters, table
from appliance.api.problems import RequestError, refusal
from appliance.audit import endpoints
from appliance.audit.digests import Salts
from appliance.audit.endpoints import ALWAYS, INFERENCE
from appliance.audit.log import AuditLog
from appliance.audit.sink import AUDIT_FULL
from appliance.boot.booted import Booted
from appliance.boot.running.load import RunningModel
from appliance.engine.decode.sampler import Sampling
from appliance.engine.scheduler import Load, Scheduler
from appliance.errors import ApplianceError, AuditError, TamperedError
from appliance.policy.schema import Model, Policy
from appliance.secure.residue import Scrubber
from appliance.service.admission.constraints import Constraints
from appliance.service.admission.limits import Accounts, Places
from appliance.service.admission.privacy import Timing, spaces
from appliance.service.admission.prompts import Prompts
from appliance.service.admission.redaction import Rule
from appliance.service.admission.tenants import Caller, Tenants
from appliance.service.admission.turns import Queue
from appliance.service.answering.exchange import Exchange
from appliance.service.answering.metrics import Metrics
from appliance.service.attesting.activation import Activations
from appliance.service.attesting.checkpoints import Flushing
from appliance.service.attesting.evidences import Evidences
from appliance.service.attesting.held_log import HeldLog
from appliance.service.attesting.receipts import Receipts
from appliance.service.attesting.timestamps import Timestamps
from appliance.service.attesting.witnesses import Witnesses
from appliance.service.counting.records import OwnRecords
from appliance.service.counting.usage import Ledger
from appliance.state.room import AMPLE, FULL, LogRoom
from appliance.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from appliance.service.loading.changes import Changes

GUIDED_PLACES = 2  # of a request with a negative prompt: its answer is two sequences


class Tell(Protocol):
    """Tells whoever runs the service of an event; facts are numbers, and names from closed sets."""

    def __call__(self, event: str, **facts: Any) -> None:
        """Say it."""
        ...


class Unfinished:
    """The generations of a model that have not ended, and the refusal of those to come, once the
    model is taken away from all."""

    def __init__(self) -> None:
        self._ends: set[Callable[[RequestError], None]] = set()
        self._refusal: Callable[[], RequestError] | None = None

    def enter(self, end: Callable[[RequestError], None]) -> Callable[[], None]:
        """Count a generation in, which `end` would end; returns what counts it out. RequestError
        where the model is gone."""
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
    unfinished: Unfinished = field(default_factory=Unfinished, compare=False)

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
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        return self.running.tokenizer


@dataclass
class Service:
    """One running service. Only the counters and flags at the end change."""

    booted: Booted
    models: dict[str, ServedModel]  # that take requests
    tenants: Tenants
    accounts: Accounts
    places: Places
    timing: Timing
    rules: tuple[Rule, ...]
    evidences: Evidences
    activations: Activations
    constraints: Constraints
    flushing: Flushing
    witnesses: Witnesses
    timestamps: Timestamps
    held_log: HeldLog
    scrubber: Scrubber
    leaving: dict[str, ServedModel] = field(default_factory=dict)  # that end their answers, and are wiped then
    receipts: Receipts | None = None  # None: the policy gives none
    salts: Salts | None = None  # of digests in the log; None: its version has none
    metrics: Metrics = field(default_factory=Metrics)
    ledger: Ledger = field(default_factory=Ledger)
    own_records: OwnRecords = field(default_factory=OwnRecords)
    prompts: Prompts = field(default_factory=Prompts)
    admitted: Counter[str] = field(default_factory=Counter)  # inference requests that are not over, by model
    queue: Queue | None = None  # None: schema 1, where `places` count waiting requests, too
    answered: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # by code
    draining: bool = False
    failed: set[str] = field(default_factory=set)  # models whose end is recorded
    unaudited: bool = False  # the audit log failed: nothing more is served
    told_room: str = AMPLE  # the state of its room that the operator was told last
    tell: Tell = lambda event, **facts: None  # the operator, on the console
    changes: Changes = field(init=False, repr=False)  # of the models, by an admin

    @property
    def policy(self) -> Policy:
        """The deployment policy."""
        return self.booted.policy

    @property
    def audit(self) -> AuditLog:
        """The audit log."""
        return self.booted.audit

    @property
    def held(self) -> tuple[ServedModel, ...]:
        """All models with a scheduler that is not closed."""
        return (*self.models.values(), *self.leaving.values())

    @property
    def ready(self) -> bool:
        """Whether inference requests are accepted."""
        return not (self.draining or self.unaudited or self.full)

    @property
    def room(self) -> LogRoom | None:
        """The audit log's room on the state disk; None where the log is elsewhere."""
        disk = self.booted.state
        return disk.room if disk is not None and self.policy.audit.sink == "state" else None

    def ample(self) -> bool:
        """Whether the audit log has more room than what is kept for tenants; tells the operator
        where that changed."""
        self.tell_room()
        return self.room is None or self.room.state == AMPLE

    @property
    def full(self) -> bool:
        """Whether the audit log has no room for further requests."""
        return self.room is not None and self.room.state == FULL

    @property
    def rounding(self) -> int:
        """Token counts are told in multiples of this."""
        return self.policy.privacy.token_count_rounding

    @property
    def fingerprint(self) -> str:
        """The value of `system_fingerprint`: the policy's digest, shortened."""
        return "fp_" + self.booted.policy_digest.hex()[:16]

    def rules_for(self, place: str) -> tuple[Rule, ...]:
        """The redaction rules for the `prompt` or the `answer`."""
        return self.rules if place in self.policy.privacy.redaction.apply_to else ()

    def model_for(self, caller: Caller, name: str) -> ServedModel:
        """A loaded model by name. One answer for a model that the policy does not have and one that
        is not allowed."""
        if not caller.may_ask(name) or all(model.name != name for model in self.policy.models):
            raise RequestError("model_not_found", param="model")
        found = self.models.get(name)
        if found is None:
            there = ", ".join(sorted(filter(caller.may_ask, self.models)))
            raise RequestError("model_not_loaded", f"model {name} is not loaded at the moment; loaded: "
                               f"{there or 'none'}", param="model")
        return found

    def only_model(self, caller: Caller) -> str:
        """The name of the model of a caller that may ask one alone; RequestError for another."""
        names = sorted(filter(caller.may_ask, self.models))
        if len(names) != 1:
            raise RequestError("missing_required_parameter", "model: this parameter is required; allowed: "
                               f"{', '.join(names) or 'none'}", param="model")
        return names[0]

    @contextlib.contextmanager
    def reading(self, caller: Caller) -> Iterator[None]:
        """Bound the memory of bodies that arrive: each is of a request in progress, and the plan
        has room for those."""
        self.places.take(caller.name)
        try:
            yield
        finally:
            self.places.leave(caller.name)

    async def room_for_text(self, exchange: Exchange, caller: Caller) -> None:
        """Wait until a request's body may be read: those of waiting requests are not held all at
        the same time."""
        if self.queue is not None:
            ticket = await self.queue.texts.place(caller.name)
            exchange.forget_text = ticket.leave
            exchange.closing.append(ticket.leave)

    def enter(self, exchange: Exchange, caller: Caller) -> None:
        """Count an inference request in, or refuse it when there are too many; it leaves with its
        exchange."""
        if self.draining:
            raise RequestError("shutting_down", retry_after=5)
        self.places.take(caller.name)
        model = exchange.model or ""
        self.admitted[model] += 1
        exchange.closing.append(lambda: self._leave(caller, model))

    def weigh(self, exchange: Exchange, caller: Caller, weight: int) -> None:
        """Count a request that was let in as several, or refuse it when there are too many."""
        own = self.tenants.places.get(caller.name, weight)
        if weight > own:
            raise RequestError("invalid_value", f"the request counts as {weight}: at most {own} of the tenant's "
                               "requests may be in progress", param="n")
        if weight > 1:
            self.places.take(caller.name, weight - 1)
            exchange.closing.append(lambda: self.places.leave(caller.name, weight - 1))

    @property
    def heaviest(self) -> int:
        """The requests that one may count as. Under schema 2 it leaves the places that are kept for
        other tenants."""
        return self.policy.limits.concurrent_requests if self.queue is None else self.queue.answers.left

    def widest(self, model: ServedModel) -> int:
        """The texts that a beam search may go on with: it leaves what is kept for other tenants."""
        return min(model.scheduler.left, self.heaviest)

    def most_at_once(self, model: ServedModel) -> int:
        """Answers of a model that can be in progress at the same time."""
        return min(model.slots, self.policy.limits.concurrent_requests)

    def places_of(self, model: ServedModel, choosing: Sampling) -> int:
        """The places that an answer takes: with a negative prompt two. RequestError where there are
        never so many."""
        if choosing.guided and self.most_at_once(model) < GUIDED_PLACES:
            raise RequestError("unsupported_parameter", "guidance_scale: it takes the places of two answers; the model "
                               "has one", param="guidance_scale")
        return GUIDED_PLACES if choosing.guided else 1

    def _leave(self, caller: Caller, model: str) -> None:
        self.places.leave(caller.name)
        self.admitted[model] -= 1

    @property
    def in_progress(self) -> int:
        """Inference requests that were admitted and are not over."""
        return self.admitted.total()

    def load_of(self, model: ServedModel) -> Load:
        """Requests that wait for a model, and that it works on. Where times are padded, an answer
        counts until it has left: the moment at which the engine was done with it is nobody's
        business. Under schema 2 requests wait here, before the scheduler knows of them."""
        if self.queue is None and not (self.timing.first_token or self.timing.total):
            return model.scheduler.load
        running = min(self.admitted[model.name], model.slots)
        return Load(self.admitted[model.name] - running, running)

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return self.refusals.total()

    def lose_audit(self, error: ApplianceError) -> None:
        """Serve nothing more: what happens can no longer be recorded, or quotas no longer be kept.
        A log that is full is not lost: it says itself for what it has room."""
        if error.code == AUDIT_FULL:
            self.tell_room()
        elif not self.unaudited:
            self.unaudited = True
            self.tell("unaudited", reason=error.summary)

    def tell_room(self) -> None:
        """Tell the operator, once for each, that the audit log's disk is nearly full, and full."""
        room = self.room
        if room is not None and room.state != self.told_room:
            self.told_room = room.state
            if room.state != AMPLE:
                self.tell(f"state_{room.state}", free_bytes=room.free)

    def require_audit(self, endpoint: str = "") -> None:
        """Refuse everything once requests can no longer be recorded, but for endpoints that tell
        the operator so."""
        if self.unaudited and endpoint not in ALWAYS:
            raise RequestError("audit_unavailable")

    def require_room(self, endpoint: str) -> None:
        """Refuse a caller's request that the state disk has no room to record. Requests that were
        let in have some left for their ends."""
        if self.full and endpoint not in ALWAYS:
            self.tell_room()
            raise RequestError("state_full")

    async def flushed(self, exchange: Exchange) -> None:
        """Wait until a request's record is on the disk, if there is a new one. RequestError where
        it cannot be."""
        if not exchange.unflushed:
            return
        exchange.unflushed = False
        try:
            await self.flushing.flushed()
        except AuditError as error:
            self.lose_audit(error)
            self.require_audit(exchange.endpoint)

    def record_failures(self) -> None:
        """Record each model that a disk ended since the last time. Of a draft model no answer
        tells."""
        for name, model in self.booted.models.items():
            if model.failure is not None and name not in self.failed:
                self.failed.add(name)
                tampered = model.failure == TamperedError.code
                code = "model_tampered" if tampered else "model_unreadable"
                self.tell("model_failed", model=name, code=code)
                self.audit.write("model.failed", model=name, code=code)

    def refuse(self, exchange: Exchange, error: Exception) -> RequestError:
        """An exception as a refusal, noted in the exchange. An unforeseen one is reported by class
        and place."""
        refused = refusal(error)
        exchange.code, exchange.param = refused.code, parameters.known(refused.param)
        if refused.status == 405:
            exchange.headers["allow"] = endpoints.methods(exchange.endpoint)
        if refused.code == "internal_error" and not self.unaudited:
            self.booted.silence.exception("request", type(error), error.__traceback__)
        problems.let_go(error)
        return refused

    def refusal_body(self, exchange: Exchange, refused: RequestError) -> bytes:
        """A refusal's body; on inference endpoints with as many spaces after it as an answer could
        have."""
        body = table.refusal(exchange.path or exchange.endpoint, refused, exchange.request_id)
        multiple = self.policy.privacy.size_padding_bytes if exchange.endpoint in INFERENCE else None
        exchange.spaces = spaces(len(body), multiple)
        return body

    @property
    def status(self) -> str:
        """Whether requests are accepted, or why they are not: a word of `/health`."""
        if self.ready:
            return "ready"
        return "draining" if self.draining else "unaudited" if self.unaudited else FULL

    def health(self) -> dict[str, Any]:
        """The answer of `/health`: state, platform, policy, models, and the boot's steps."""
        state, disk, sessions = self.booted.attestor.state, self.booted.state, self.booted.sessions
        return {
            "status": self.status,
            "platform": self.booted.attestor.platform,
            "policy_sha384": self.booted.policy_digest.hex(),
            "self_test_sha384": self.booted.self_test.digest.hex(),
            "generation": state.generation,
            "models": [{"name": model.name, "sha256": model.sha256, "failure": self.booted.models[model.name].failure}
                       for model in state.models],
            "hardening": [measure.as_json() for measure in self.booted.measures],
            "state": None if disk is None else {"epoch": disk.epoch, "disk": disk.disk.hex(), "free_bytes": disk.free,
                                                "room": disk.room.state},
            "sessions": None if sessions is None else sessions.as_json(),
            "boot": self.booted.report.as_json(),
        }
