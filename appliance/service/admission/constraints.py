"""Constraints of answers: from the tools and the structure of a request to a compiled constraint.

    a call must come, one at most, or strict   calls by the grammar of the model's format
    structure                                  that, after a thought if the model has one
    both                                       calls, or the structure

Compiling takes time and memory, within bounds. It runs in a thread, one at a time, tenants in turn.
Compiled code cannot be ended from outside. So one that takes longer than it ever should loses its
turn, its request is refused, and its tenant has no other until it is done.

A tenant's latest constraints are kept for a minute after their last use, by digest, and for this
tenant alone: that another one had the same is nobody's business, nor is how many it has. So each
tenant has its own part of the room.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from appliance.api import findings
from appliance.api.offers import Offer
from appliance.api.problems import RequestError
from appliance.api.structure import Structure
from appliance.api.wishes import features
from appliance.constraint import compiler
from appliance.constraint.compiler import Compiler
from appliance.constraint.schema import check_schema, dialects, kept
from appliance.constraint.schema.languages import Work
from appliance.constraint.spec import JsonObject, JsonSchema, Lark, RegexText, Spec, TextList
from appliance.constraint.walk import Constraint
from appliance.errors import ConstraintError
from appliance.secure import stacks
from appliance.service.admission.closing import arguments, close_objects
from appliance.service.admission.turns import Priorities, Ticket, Turns
from appliance.text.calls import readers
from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

KEPT = 64  # constraints that are kept, over all tenants and models; of each tenant and model one at least
KEPT_SECONDS = 60.0  # after the last use
EASING_SECONDS = 2.0  # of a processor, to find which functions of a request are at fault; a thousand take 0.7
SECONDS = 10.0  # that a compilation has its turn for: what passes its bounds takes one at most
LATE = 2  # compilations that may run on without a turn, before all others are refused
STACK = 1 << 20  # bytes below a compilation: a grammar as deep as may be takes 600 KB
NO_ROOM = "constraint-no-room"  # the code of an error that is no fault of the constraint's
MOST = 1 << 18  # characters of a constraint: compiled, it takes up to 24 bytes for each

Path = tuple[str, ...]


class Ease(IntEnum):
    """How much of the schema of a tool that is not strict is left out."""

    EXACT = 0  # the keywords that are not enforced
    WITHOUT_ONE_OF = 1  # these, and that no more than one schema of a `oneOf` holds
    ANY = 2  # all of it


@dataclass(frozen=True)
class Wish:
    """The parts of a request that make the constraint of its answer. `opened`: its prompt ends
    within a thought. `ignored` takes the paths of the keywords that are not enforced."""

    template: ChatTemplate | None
    tokenizer: Tokenizer
    compiler: Compiler
    offer: Offer
    tools: Sequence[ToolSpec]
    structure: Structure | None
    opened: bool
    ignored: list[Path] = field(default_factory=list)

    @property
    def calls(self) -> bool:
        """Whether the offer of tools asks for a constraint."""
        offer = self.offer
        return self.template is not None and bool(self.tools) and (
            offer.required or not offer.parallel or any(tool.strict for tool in self.tools))

    @property
    def param(self) -> str:
        """The parameter that asks for it."""
        return self.offer.param if self.structure is None or self.offer.required else self.structure.param

    def refusal(self, error: ConstraintError) -> RequestError:
        """The refusal of the request for a fault of its constraint."""
        is_schema = self.param != self.offer.param and self.structure is not None and isinstance(
            self.structure.spec, JsonSchema)
        return refusal(error, self.param, is_schema=is_schema)

    def spec(self, ease: Callable[[ToolSpec], Ease] = lambda tool: Ease.EXACT) -> Spec:
        """Write all of it for the engine. `ease` says of a tool that is not strict how much of its
        schema is left out. RequestError and ConstraintError for what would not be enforced to the
        letter."""
        structure, template = self.structure, self.template
        if structure is not None:
            structure = _check(structure)
            if template is None or not (self.tools or readers.markers_of(template, tools=False)):
                return structure.spec
        if template is None:
            raise ValueError("neither calls nor a structure are asked for")
        control = readers.control_of(self.tokenizer, readers.markers_of(template, tools=bool(self.tools)))
        self.ignored.clear()
        work = Work()
        known = [_strict(tool, self.offer.path(place), work) if tool.strict
                 else self._easier(tool, place, ease(tool), work) for place, tool in enumerate(self.tools)]
        said = None
        if structure is not None and not self.offer.required:
            said = functools.partial(_expression, structure=structure)
        return Lark(readers.grammar_of(template, known, required=self.offer.required, parallel=self.offer.parallel,
                                       opened=self.opened, control=control, text=said))


    def _easier(self, tool: ToolSpec, place: int, ease: Ease, work: Work) -> ToolSpec:
        """A tool that is not strict, without the keywords that are not enforced."""
        try:
            parameters, dropped = ({}, [()]) if ease == Ease.ANY else _without_faults(tool.parameters, ease, work)
        except ConstraintError:
            parameters, dropped = {}, [()]
        eased = replace(tool, parameters=parameters)
        unkept = None if self.template is None else readers.format_of(self.template).unkept
        paths = dict.fromkeys([*dropped, *(() if unkept is None else unkept(eased))])
        self.ignored.extend((*self.offer.path(place).split("."), *path) for path in paths)
        return eased

    def easing(self) -> Callable[[ToolSpec], Ease]:
        """How much to leave out of each tool, by whether its schema compiles on its own."""
        work, until = Work(), time.thread_time() + EASING_SECONDS
        found = {tool.name: self._ease(tool, work) if time.thread_time() < until else Ease.ANY
                 for tool in self.tools if not tool.strict}
        return lambda tool: found[tool.name]

    def _ease(self, tool: ToolSpec, work: Work) -> Ease:
        for ease in (Ease.EXACT, Ease.WITHOUT_ONE_OF):
            with contextlib.suppress(ConstraintError):
                parameters, _ = _without_faults(tool.parameters, ease, work)
                self.compiler.compile(JsonSchema({**parameters, "type": "object"}))
                return ease
        return Ease.ANY


def _any(_tool: ToolSpec) -> Ease:
    return Ease.ANY


def _check(structure: Structure) -> Structure:
    """A structure that is enforced to the letter. Objects have the members alone that it names."""
    if not isinstance(structure.spec, JsonSchema):
        return structure
    try:
        check_schema(structure.spec.schema)
    except ConstraintError as error:
        raise refusal(error, structure.param) from None
    return replace(structure, spec=JsonSchema(close_objects(structure.spec.schema)))


def _strict(tool: ToolSpec, path: str, work: Work) -> ToolSpec:
    """A tool whose parameters are enforced to the letter."""
    try:
        check_schema(tool.parameters, work)
    except ConstraintError as error:
        raise refusal(error, path) from None
    return replace(tool, parameters=arguments(tool.parameters))


def _without_faults(parameters: Mapping[str, Any], ease: Ease, work: Work) -> tuple[Mapping[str, Any], list[Path]]:
    """The part of a tool's parameters that is enforced, and the paths of the rest."""
    found, dropped = kept.kept(arguments(parameters), work)
    if ease == Ease.WITHOUT_ONE_OF:
        found, more = kept.without_one_of(found)
        dropped += more
    return found, dropped


def _expression(grammar: GrammarWriter, *, structure: Structure) -> str:
    """A structure as a part of a grammar."""
    match structure.spec:
        case JsonSchema(schema):
            return grammar.json(schema)
        case JsonObject():
            return grammar.json({"type": "object"})
        case RegexText():
            return compiler.grammar(structure.spec, {}).removeprefix("start: ")
        case TextList(texts):
            compiler.grammar(structure.spec, {})  # refuses texts that are none
            return grammar.rule(f"/{'|'.join(map(dialects.literal, texts))}/")
        case _:
            raise findings.refusal_of(features.exclusion(features.GRAMMAR, features.THINKING), name=structure.param)


def refusal(error: ConstraintError, param: str, *, is_schema: bool = True) -> RequestError:
    """A fault of a constraint as the refusal of a parameter. Within a schema the parameter's path
    goes on to the keyword; within a grammar the place is told in words."""
    if error.code == NO_ROOM:
        return RequestError("structure_no_room")
    path = f"{param}.{error.path}"[:200] if error.path and is_schema else param
    place = f"{error.path}: " if error.path and not is_schema else ""
    hint = f"; {error.hint}" if error.hint else ""
    return RequestError("invalid_value", f"{path}: {place}{error.summary}{hint}", param=path)


class _Shelf:
    """Compiled constraints of a tenant for a model, by the SHA-256 of all that they say; the one
    that was used last at the end. For one thread at a time."""

    def __init__(self) -> None:
        self._constraints: OrderedDict[bytes, tuple[Constraint, float]] = OrderedDict()

    def get(self, key: bytes) -> Constraint | None:
        """One that is kept and not spoiled."""
        found, _ = self._constraints.get(key, (None, 0.0))
        return None if found is None or found.spoiled else found

    def put(self, key: bytes, constraint: Constraint, room: int) -> None:
        """Keep one from now on, beside the latest others."""
        self._constraints[key] = constraint, time.monotonic()
        self._constraints.move_to_end(key)
        while len(self._constraints) > room:
            self._constraints.popitem(last=False)

    def expire(self) -> bool:
        """Let go of those whose time is over; whether others are left."""
        while self._constraints:
            key, (_, used) = next(iter(self._constraints.items()))
            if used + KEPT_SECONDS > time.monotonic():
                return True
            del self._constraints[key]
        return False


def _room(tenants: Collection[str]) -> int:
    """Constraints that are kept for each tenant and model."""
    return max(1, KEPT // max(1, len(tenants)))


class Constraints:
    """The compiled constraints of a service."""

    def __init__(self, tenants: Collection[str], freed: Callable[[], None] = lambda: None) -> None:
        """`tenants`: who may ask, by name. `freed` is called when memory should be wiped that had
        words of requests."""
        self._turns, self._room, self._freed = Turns(1, tenants), _room(tenants), freed
        self._kept: dict[tuple[str, str], _Shelf] = {}
        self._lock = threading.Lock()  # of what is kept
        self._late: set[str] = set()  # tenants with a compilation that lost its turn
        self._timer: asyncio.TimerHandle | None = None

    async def ready(self, tenant: str, model: str, wish: Wish) -> Constraint:
        """A constraint for one answer. RequestError for one that is not allowed, or too large."""
        self._require_none_late(tenant)
        ticket = await self._turns.place(tenant)
        try:
            self._require_none_late(tenant)
        except RequestError:
            ticket.leave()
            raise
        return await asyncio.shield(self._begin(tenant, ticket, lambda: self._make((tenant, model), wish)))

    def waiting_of(self, tenant: str) -> int:
        """Requests of a tenant whose constraints wait for their turn."""
        return self._turns.waiting_of(tenant)

    def serve(self, tenants: Collection[str]) -> None:
        """Let these tenants ask from now on, and let go of what was compiled for others."""
        self._turns.serve(tenants, Priorities())
        self._room = _room(tenants)
        with self._lock:
            self._kept = {whose: kept for whose, kept in self._kept.items() if whose[0] in tenants}

    def forget(self, model: str) -> None:
        """Let go of what was compiled for a model that is no longer there."""
        with self._lock:
            self._kept = {whose: kept for whose, kept in self._kept.items() if whose[1] != model}

    def _expire(self) -> None:
        """Let go of what was used last a minute ago, and come again while there is more."""
        with self._lock:
            self._kept = {whose: kept for whose, kept in self._kept.items() if kept.expire()}
            again = bool(self._kept)
        self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS / 4, self._expire) if again else None
        self._freed()

    def _require_none_late(self, tenant: str) -> None:
        if tenant in self._late or len(self._late) >= LATE:
            raise RequestError("overloaded", "an earlier constraint takes longer than it may; it is waited for",
                               retry_after=SECONDS)

    def _make(self, whose: tuple[str, str], wish: Wish) -> Constraint:
        """The same, in the thread. A schema that no arguments meet does not refuse a request whose
        tools are not strict: of these less and less is enforced."""
        try:
            return self._compile(whose, wish, wish.spec())
        except ConstraintError as error:
            last = error
        if last.code != NO_ROOM and not all(tool.strict for tool in wish.tools):
            for ease in (wish.easing(), _any):
                try:
                    return self._compile(whose, wish, wish.spec(ease))
                except ConstraintError as error:
                    last = error
        raise wish.refusal(last) from None

    def _compile(self, whose: tuple[str, str], wish: Wish, spec: Spec) -> Constraint:
        """One that is kept, or a new one."""
        text = _text(spec)
        if len(text) > MOST:
            raise RequestError("invalid_value", f"{wish.param}: what would be enforced has {len(text)} characters; "
                               f"at most {MOST} are allowed", param=wish.param)
        key = hashlib.sha256(text.encode()).digest()
        with self._lock:
            kept = self._kept.setdefault(whose, _Shelf())
            found = kept.get(key)
        found = wish.compiler.compile(spec) if found is None else found
        with self._lock:
            kept.put(key, found, self._room)
        return found

    def _begin(self, tenant: str, ticket: Ticket, work: Callable[[], Constraint]) -> asyncio.Future[Constraint]:
        """The result of `work` in a thread. Its turn lasts until the thread is done, even if nobody
        waits, but no longer than `SECONDS`."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Constraint] = loop.create_future()
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to see it
        running = asyncio.ensure_future(asyncio.to_thread(_do_and_wipe, work))

        def late() -> None:
            self._late.add(tenant)
            ticket.leave()
            result.set_exception(RequestError("invalid_value", f"the answer's structure takes more than {SECONDS:g} "
                                                               "seconds to compile; make it smaller"))

        def over(task: asyncio.Future[Constraint]) -> None:
            timer.cancel()
            self._late.discard(tenant)
            ticket.leave()
            if self._timer is None:
                self._timer = loop.call_later(KEPT_SECONDS, self._expire)
            if result.done():
                return
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                result.set_result(task.result())
            elif isinstance(error, asyncio.CancelledError):
                result.cancel()
            else:
                result.set_exception(error)

        timer = loop.call_later(SECONDS, late)
        running.add_done_callback(over)
        return result


def _do_and_wipe(work: Callable[[], Constraint]) -> Constraint:
    """Do `work`, which calls compiled code, and wipe what that leaves on this thread's stack."""
    try:
        return work()
    finally:
        stacks.wipe(STACK)


def _text(spec: Spec) -> str:
    """All that a spec says, the order of a schema's keys included: answers have it, too."""
    value = {name: dict(item) if isinstance(item, Mapping) else item
             for name, item in ((name, getattr(spec, name)) for name in type(spec).__dataclass_fields__)}
    return json.dumps([type(spec).__name__, value], ensure_ascii=False)
