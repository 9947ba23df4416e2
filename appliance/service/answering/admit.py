"""From a request that was read to a generation that runs: what the policy lets through, in order.

    model       the caller may ask it
    rates       requests of this key, requests in progress
    form        tools and structure, where the policy allows them
    prompt      redacted, put into the template, turned into tokens
    lengths     prompts and answers within the policy's limits and the context
    sampling    within the policy's bounds; a value outside is refused, not clamped
    weight      a request with many answers counts as several
    tokens      charged to the key ahead
    constraint  compiled, where calls or structure ask for one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from appliance.api import findings
from appliance.api.offers import Offer, called_names
from appliance.api.problems import RequestError, too_long
from appliance.api.structure import Structure
from appliance.api.wire import ANY_MODEL, ChatRequest, CompletionRequest
from appliance.api.wishes.ignored import Ignored
from appliance.constraint.walk import Constraint
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.errors import CapacityError
from appliance.service.admission import constraints, prompts, sampling, thinking
from appliance.service.admission.privacy import round_up
from appliance.service.admission.prompts import Prompt
from appliance.service.admission.tenants import Caller
from appliance.service.answering.choices import Choices, answers_to, beam_of, choices_of
from appliance.service.answering.context import ServedModel, Service
from appliance.service.answering.exchange import Exchange
from appliance.service.answering.lengths import Count, Room, lengths_of, most_tokens
from appliance.text.calls import readers
from appliance.text.calls.reading.pieces import PieceReader, ToolSpec


@dataclass
class Job:
    """A request that may run."""

    model: ServedModel
    groups: tuple[tuple[GenerationRequest, ...], ...]  # the answers to each prompt
    choices: Choices
    weight: int  # requests that it counts as, so places that it gets
    exact_prompt: int  # tokens of all prompts, for the auditor's eyes
    reader: Callable[[], PieceReader] | None = None  # makes one of the model's format of calls and thoughts
    older: bool = False  # a call has the form of `functions`
    echoed: bool = False  # an answer begins with its prompt
    logged: bool = False  # log-probabilities are told

    def begun(self, places: int) -> int:
        """Return how many of its answers may begin once it has so many of its places: those whose
        tokens were planned with these. A beam search begins with its last place."""
        if places < self.weight and self.groups[0][0].beam is not None:
            return 0
        return self.choices.count * places // self.weight


async def admit(service: Service, exchange: Exchange, request: ChatRequest | CompletionRequest,
                ignored: Ignored) -> Job:
    """Take a request through all steps; RequestError names the first that it does not pass."""
    caller = service.tenants.current(exchange.known)
    model = service.model_for(caller, request.model)
    exchange.model = model.name
    account = service.accounts.of(caller.key_digest)
    try:
        account.admit_request()
        service.enter(exchange, caller)
        if request.logprob_count is not None and service.rules_for("answer"):
            raise RequestError("unsupported_parameter", "logprobs: tokens would show what is redacted from the answer",
                               param="logprobs")
        choosing = await sampling.chosen(model.policy.sampling, model.tokenizer, request)
        choices, stops = choices_of(request, service.policy.limits), request.stops
        beam = beam_of(request, choices, model.policy.sampling, service.widest(model))
        choosing = choosing if beam is None else Sampling(seed=choosing.seed)
        places = service.places_of(model, choosing)
        offer, structure, made = await _prompts(service, exchange, model, request, ignored,
                                                guided=choosing.guided)
        counts = [Count(len(prompt.tokens), len(prompt.negative)) for prompt in made]
        room = Room(model.running.context_length, caller.tenant.context_length, model.policy.context_shift)
        lengths = lengths_of(service.policy.limits, room, counts, request, choices, service.rounding, service.heaviest)
        weight = lengths.weight if beam is None else max(lengths.weight, beam.width)
        service.weigh(exchange, caller, weight)
        exact = sum(prompt.count for prompt in made)
        count = round_up(exact, service.rounding)
        grant = account.admit_tokens(count + places * round_up(sum(lengths.bounds) * choices.tried, service.rounding))
    finally:
        exchange.headers.update(account.headers())
    exchange.closing.append(lambda: grant.settle(
        (exchange.prompt_tokens or 0) + places * (exchange.completion_tokens or 0)))
    exchange.prompt_tokens = count
    exchange.headers.update(lengths.headers)
    constraint = await _constraint(service, caller, model, offer, structure, made[0], ignored)
    reading, logged = _reading(model, request, made[0], offer.muted), request.logprob_count is not None
    asked = GenerationRequest(
        (), 0, choosing, stops, constraint=constraint, visible=reading.visible, beam=beam,
        ending=sampling.ending(model.tokenizer, request, bound=constraint is not None))
    requests = (replace(asked, prompt_ids=tuple(prompt.tokens), negative_ids=tuple(prompt.negative), max_tokens=bound,
                        shift_keep=None if beam is not None else _shift_keep(model, prompt))
                for prompt, bound in zip(made, lengths.bounds, strict=True))
    groups = tuple(answers_to(each, number, choices, logged=logged, echoed=request.echoed)
                   for number, each in enumerate(requests))
    return Job(model, groups, choices, weight, exact, reading.reader, older=offer.older, echoed=request.echoed,
               logged=logged)


async def encode(service: Service, exchange: Exchange, request: ChatRequest | CompletionRequest, ignored: Ignored, *,
                 told: bool) -> tuple[ServedModel, Prompt]:
    """Take a request whose prompt alone is wanted through the steps that concern it. RequestError,
    also where tokens are `told` and the policy forbids it."""
    caller = service.tenants.current(exchange.known)
    model = service.model_for(caller, service.only_model(caller) if request.model == ANY_MODEL else request.model)
    exchange.model = model.name
    if told:
        require_tokens(model)
    account = service.accounts.of(caller.key_digest)
    try:
        account.admit_request()
        service.enter(exchange, caller)
        _offer, _structure, made = await _prompts(service, exchange, model, request, ignored)
    finally:
        exchange.headers.update(account.headers())
    exchange.prompt_tokens = round_up(len(made[0].tokens), service.rounding)
    return model, made[0]


def require_tokens(model: ServedModel) -> None:
    """RequestError where the policy forbids to tell a model's tokens."""
    if not model.policy.tokenization:
        raise RequestError("permission_denied", f"the policy does not let tokens of the model {model.name} be told: "
                           "tokenization = false", param="model")


async def _prompts(service: Service, exchange: Exchange, model: ServedModel, request: ChatRequest | CompletionRequest,
                   ignored: Ignored, *, guided: bool = False) -> tuple[Offer, Structure | None, list[Prompt]]:
    """The form of an answer, and the prompts, whose text is held no longer."""
    offer, structure = _form(model, request)
    given = _variables(model, request, ignored) if isinstance(request, ChatRequest) else {}
    made = await _encoded(service, model, request, offer, given, guided=guided)
    prompts.drop_text(request)
    exchange.forget_text()
    return offer, structure, made


def _form(model: ServedModel, request: ChatRequest | CompletionRequest) -> tuple[Offer, Structure | None]:
    """The calls and the structure that a request asks for, where the policy allows them. The offer
    has no more functions: the prompt's maker takes them. Where it has none, a small model may still
    copy a call from an earlier turn."""
    offer = request.offer if isinstance(request, ChatRequest) else Offer()
    if offer.functions and not model.policy.tools:
        raise RequestError("unsupported_parameter", f"{offer.param}: the policy allows no tools with this model",
                           param=offer.param)
    structure = request.structure
    if isinstance(request, ChatRequest) and structure is None and not offer.functions:
        named = (*offer.muted, *called_names(turn.calls for turn in request.messages))
        offer = replace(offer, muted=tuple(dict.fromkeys(named)))
    if structure is not None and not model.policy.structured_output:
        raise RequestError("unsupported_parameter", f"{structure.param}: the policy allows no structured output with "
                           "this model", param=structure.param)
    return offer, structure


async def _constraint(service: Service, caller: Caller, model: ServedModel, offer: Offer, structure: Structure | None,
                      prompt: Prompt, ignored: Ignored) -> Constraint | None:
    """The compiled constraint of an answer; None where nothing asks for one. Notes the keywords of
    tools that it does not enforce."""
    template = model.running.template and model.running.template.of_request(tools=bool(prompt.tools))
    wanted = constraints.Wanted(template, model.tokenizer, model.running.engine.constraints, offer, prompt.tools,
                                structure, prompt.opened)
    if not (wanted.calls or structure):
        return None
    constraint = await service.constraints.ready(caller.name, model.name, wanted)
    for path in wanted.ignored:
        ignored.note(path, "this keyword is not enforced here, and the function is not strict")
    findings.require(ignored)
    return constraint


@dataclass(frozen=True)
class _Reading:
    """How an answer's text is read, and which control tokens its reader must see."""

    reader: Callable[[], PieceReader] | None = None
    visible: frozenset[int] = frozenset()


def _reading(model: ServedModel, request: ChatRequest | CompletionRequest, prompt: Prompt,
             muted: Sequence[str]) -> _Reading:
    """The reading of an answer: of all text as content where the request has no tools and the model
    has no thoughts. Calls of `muted` functions are left out of it."""
    template = model.running.template
    if not isinstance(request, ChatRequest) or template is None:
        return _Reading()
    template = template.of_request(tools=bool(prompt.tools))
    tools = prompt.tools or tuple(map(ToolSpec, muted))
    markers = readers.markers_of(template, tools=bool(tools))
    visible = frozenset(readers.control_of(model.tokenizer, markers).values())
    if not (tools or markers) or request.reasoning_format == "none":
        return _Reading(None, visible)
    reader = partial(readers.reader_of, template, tools or None, prompt.opened, muted=not prompt.tools)
    return _Reading(reader, visible)


async def _encoded(service: Service, model: ServedModel, request: ChatRequest | CompletionRequest,
                   offer: Offer, given: Mapping[str, object], *, guided: bool) -> list[Prompt]:
    most = most_tokens(service.policy.limits, model.running.context_length)
    rules = service.rules_for("prompt")
    least = prompts.at_least(request, model.tokenizer)
    if not rules and least > most:  # what waits for its turn takes memory
        raise too_long(most, least if service.rounding == 1 else None, exact=False)
    length, turns, leaving = prompts.length(request), prompts.take_turns(request, given), prompts.Leaving()
    try:
        return await service.prompts.ready(length, lambda: prompts.encode(
            request, turns, model.running.template, model.tokenizer, rules, most, leaving, offer.path, guided=guided,
            exact=service.rounding == 1))
    except CapacityError:  # of what surrounds a suffix
        raise too_long(most) from None
    finally:
        leaving.leave()


def _variables(model: ServedModel, request: ChatRequest, ignored: Ignored) -> dict[str, object]:
    """The variables of ours for the model's template. RequestError for a model that has none, and
    for wishes without effect where the policy wants them refused."""
    template = model.running.template
    if template is None:
        raise RequestError("no_chat_template", f"model {model.name} has no chat template, so it takes no chats; it "
                           "continues prompts at /v1/completions", param="model")
    template = template.of_request(tools=bool(request.offer.functions))
    thinking.taken(template, request, ignored)
    found = thinking.variables(template, request, ignored)
    findings.require(ignored)
    return found


def _shift_keep(model: ServedModel, prompt: Prompt) -> int | None:
    """First tokens that stay where a full context drops its older half: the one that begins a text.
    None where the answer ends then, as it does with a negative prompt."""
    shifts = model.policy.context_shift and not prompt.negative
    return int(prompt.tokens[0] == model.tokenizer.bos) if shifts else None
