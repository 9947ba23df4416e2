"""From a request that was read to a job for the engine: what the policy lets through, in order.

Each step makes a value of the one before, or refuses the request:

    Inquiry    what was asked, by whom
    Access     a model that the caller may ask; one more request of this key, and in progress
    Manner     sampling within the policy's bounds, answers, beams: a value outside is refused, not clamped
    Material   tools and structure, where the policy allows them; text redacted, in the template, as tokens
    Lengths    prompts and answers within limits and context; as how many requests it counts; tokens charged ahead
    Job        with a compiled constraint, where calls or structure ask for one
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from appliance.api import findings
from appliance.api.offers import Offer, called_names
from appliance.api.problems import RequestError, too_long
from appliance.api.structure import Structure
from appliance.api.wire import ANY_MODEL, ChatRequest, CompletionRequest
from appliance.api.wishes import features
from appliance.api.wishes.ignored import Ignored
from appliance.constraint.walk import Constraint
from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.generation import GenerationRequest, check_sweeping
from appliance.engine.decode.sampler import Sampling
from appliance.errors import CapacityError, EngineError
from appliance.oblivious import AnswerTexts, Sweeps
from appliance.service.admission import constraints, prompts, sampling, thinking
from appliance.service.admission.limits import Purse
from appliance.service.admission.privacy import round_up
from appliance.service.admission.prompts import PromptTokens
from appliance.service.admission.tenants import Caller
from appliance.service.answering.choices import Choices, answers_to, beam_of, choices_of
from appliance.service.answering.lengths import Count, Extent, Lengths, lengths_of, most_tokens
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.models import ServedModel
from appliance.service.parts.wiring import Wiring
from appliance.text.calls import readers
from appliance.text.calls.reading.pieces import PieceReader, ToolSpec


@dataclass(frozen=True)
class Inquiry:
    """A request that was read. `ignored` takes note of what has no effect."""

    service: Wiring
    exchange: Exchange
    request: ChatRequest | CompletionRequest
    ignored: Ignored


@dataclass(frozen=True)
class Access:
    """The model that is asked, and what pays for it."""

    caller: Caller
    model: ServedModel
    purse: Purse


@dataclass(frozen=True)
class Manner:
    """How an answer is chosen."""

    sampling: Sampling
    choices: Choices
    beam: Beam | None
    places: int  # that each answer takes


@dataclass(frozen=True)
class Material:
    """The prompts, and the form that their answers have."""

    prompts: Sequence[PromptTokens]
    offer: Offer
    structure: Structure | None

    @property
    def count(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.count for prompt in self.prompts)


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
    logged: bool = False  # log-probabilities are reported

    def startable(self, places: int) -> int:
        """Return how many of its answers may begin once it has so many of its places: as many
        as the tokens of these places were planned for. A beam search begins with its last place."""
        if places < self.weight and self.groups[0][0].beam is not None:
            return 0
        return self.choices.count * places // self.weight


async def admit(asked: Inquiry) -> Job:
    """Take a request through all steps; RequestError names the first that it does not pass."""
    access = _access(asked, asked.request.model)
    with _letting_in(asked, access):
        manner = await _manner(asked, access)
        material = await _material(asked, access, guided=manner.sampling.guided)
        lengths = _lengths(asked, access, manner, material)
        _charge(asked, access, manner, material, lengths)
    asked.exchange.headers.update(lengths.headers)
    return await _job(asked, access, manner, material, lengths)


async def encode(asked: Inquiry, *, told: bool) -> tuple[ServedModel, PromptTokens]:
    """Take a request whose prompt alone is wanted through the steps that concern it. RequestError,
    also where tokens are `told` and the policy forbids it."""
    name = asked.request.model
    if name == ANY_MODEL:
        name = asked.service.models.only(asked.service.roster.current(asked.exchange.known))
    access = _access(asked, name)
    if told:
        require_tokens(access.model)
    with _letting_in(asked, access):
        material = await _material(asked, access)
    asked.exchange.course.prompt_tokens = round_up(len(material.prompts[0].tokens), asked.service.rounding)
    return access.model, material.prompts[0]


def _access(asked: Inquiry, name: str) -> Access:
    """The model, which the caller may ask."""
    service = asked.service
    caller = service.roster.current(asked.exchange.known)
    model = service.models.of(caller, name)
    asked.exchange.model = model.name
    return Access(caller, model, service.accounts.purse(caller.key_digest, caller.tenant))


@contextlib.contextmanager
def _letting_in(asked: Inquiry, access: Access) -> Iterator[None]:
    """Count the request, and give its answer or refusal the purse's headers."""
    try:
        access.purse.admit_request()
        asked.service.readiness.require_going_on()
        asked.service.traffic.enter(asked.exchange, access.caller, access.model.name)
        yield
    finally:
        asked.exchange.headers.update(access.purse.headers())


async def _manner(asked: Inquiry, access: Access) -> Manner:
    """How to choose the answers, within the policy's bounds."""
    service, request, model = asked.service, asked.request, access.model
    if request.logprob_count is not None and service.substitutions_in("answer"):
        raise findings.refusal_of(features.exclusion("logprobs", features.REDACTED_ANSWERS))
    choosing = await sampling.chosen(model.policy.sampling, model.tokenizer, request)
    choices = choices_of(request, service.policy.limits)
    beam = beam_of(request, choices, model.policy.sampling, service.traffic.widest(model))
    choosing = choosing if beam is None else Sampling(seed=choosing.seed)
    return Manner(choosing, choices, beam, service.traffic.places_of(model, choosing))


def _lengths(asked: Inquiry, access: Access, manner: Manner, material: Material) -> Lengths:
    """The bounds of prompts and answers."""
    service, model = asked.service, access.model
    extent = Extent(model.running.context_length, access.caller.tenant.context_length, model.policy.context_shift,
                    model.bounds)
    lengths = lengths_of(
        service.policy.limits, extent, [Count(len(each.tokens), len(each.negative)) for each in material.prompts],
        asked.request, manner.choices, service.rounding, service.traffic.heaviest)
    return lengths if manner.beam is None else replace(lengths, weight=max(lengths.weight, manner.beam.width))


def _charge(asked: Inquiry, access: Access, manner: Manner, material: Material, lengths: Lengths) -> None:
    """Charge a request for what it may take at most, until it ends."""
    service, course, places = asked.service, asked.exchange.course, manner.places
    service.traffic.weigh(asked.exchange, access.caller, lengths.weight)
    count = round_up(material.count, service.rounding)
    settle = access.purse.admit_tokens(
        count, places * round_up(sum(lengths.bounds) * manner.choices.tried, service.rounding))
    asked.exchange.closing.append(lambda: settle(course.prompt_tokens or 0, places * (course.completion_tokens or 0)))
    course.prompt_tokens = count


async def _job(asked: Inquiry, access: Access, manner: Manner, material: Material, lengths: Lengths) -> Job:
    """The requests to the engine."""
    request, model, beam, made = asked.request, access.model, manner.beam, material.prompts
    constraint = await _constraint(asked, access, material)
    reading, logged = _reading(model, request, made[0], material.offer.muted), request.logprob_count is not None
    common = GenerationRequest(
        (), 0, manner.sampling, request.stops, constraint=constraint, visible=reading.visible, beam=beam,
        ending=sampling.ending(model.tokenizer, request, bound=constraint is not None))
    _require_sweeps(model, common)
    if _stands(asked, common, reading, manner.choices.count + manner.choices.tried * sum(lengths.bounds)):
        common = replace(common, texts=_texts(asked, model, *(reading.searched or ())))
    requests = (replace(common, prompt_ids=tuple(prompt.tokens), negative_ids=tuple(prompt.negative), max_tokens=bound,
                        shift_keep=None if beam is not None else _shift_keep(model, prompt))
                for prompt, bound in zip(made, lengths.bounds, strict=True))
    groups = tuple(answers_to(each, number, manner.choices, logged=logged, echoed=request.echoed)
                   for number, each in enumerate(requests))
    return Job(model, groups, manner.choices, lengths.weight, material.count, reading.reader,
               older=material.offer.older, echoed=request.echoed, logged=logged)


def _stands(asked: Inquiry, common: GenerationRequest, reading: _Reading, pieces: int) -> bool:
    """Whether characters may stand for an answer's texts: nothing in Python reads these."""
    read = reading.searched is None or asked.request.echoed or asked.request.logprob_count is not None
    return asked.exchange.standing and not read and common.beam is None and pieces < AnswerTexts.MOST


def _texts(asked: Inquiry, model: ServedModel, marks: Sequence[str] = (),
           calls: Sequence[str] = ()) -> AnswerTexts | None:
    """The memory of an answer's texts, where marks of a reader stay as they are, and calls. None
    where the model's tokens become text in Python."""
    if not isinstance(model.tokenizer.sweeping, Sweeps):
        return None
    kept = bool(asked.service.substitutions_in("answer"))
    texts = asked.exchange.texts = AnswerTexts(model.tokenizer.sweeping.writer, marks, calls, kept=kept)
    asked.exchange.closing.append(texts.close)
    return texts


def _require_sweeps(model: ServedModel, request: GenerationRequest) -> None:
    """RequestError for what has no oblivious form, where the policy asks for it."""
    if model.tokenizer.sweeping is not None:
        try:
            check_sweeping(request)
        except EngineError as error:
            raise RequestError("unsupported_parameter", error.summary) from None


def require_tokens(model: ServedModel) -> None:
    """RequestError where the policy forbids to tell a model's tokens."""
    if not model.policy.tokenization:
        raise RequestError("permission_denied", f"the policy does not let tokens of the model {model.name} be told: "
                           "tokenization = false", param="model")


async def _material(asked: Inquiry, access: Access, *, guided: bool = False) -> Material:
    """The form of an answer, and the prompts, whose text is held no longer."""
    request, model = asked.request, access.model
    offer, structure = _form(model, request)
    given = _variables(model, request, asked.ignored) if isinstance(request, ChatRequest) else {}
    made = await _tokens(asked, model, offer, given, guided=guided)
    prompts.drop_text(request)
    asked.exchange.forget_text()
    if asked.exchange.contents is not None:
        asked.exchange.contents.close()
    return Material(made, offer, structure)


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


async def _constraint(asked: Inquiry, access: Access, material: Material) -> Constraint | None:
    """The compiled constraint of an answer; None where nothing asks for one. Notes the keywords of
    tools that it does not enforce."""
    prompt, running = material.prompts[0], access.model.running
    template = running.template and running.template.of_request(tools=bool(prompt.tools))
    wish = constraints.Wish(template, running.tokenizer, running.engine.constraints, material.offer, prompt.tools,
                            material.structure, prompt.opened)
    if not (wish.calls or material.structure):
        return None
    constraint = await asked.service.constraints.ready(access.caller.name, running.name, wish)
    for path in wish.ignored:
        asked.ignored.note(path, "this keyword is not enforced here, and the function is not strict")
    findings.require(asked.ignored)
    return constraint


@dataclass(frozen=True)
class _Reading:
    """How an answer's text is read, and which control tokens its reader must see."""

    reader: Callable[[], PieceReader] | None = None
    visible: frozenset[int] = frozenset()
    searched: tuple[tuple[str, ...], tuple[str, ...]] | None = (), ()  # words by `readers.searched_of`


def _reading(model: ServedModel, request: ChatRequest | CompletionRequest, prompt: PromptTokens,
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
    return _Reading(reader, visible, readers.searched_of(template, tools=bool(tools)))


async def _tokens(asked: Inquiry, model: ServedModel, offer: Offer, given: Mapping[str, object], *,
                  guided: bool) -> list[PromptTokens]:
    service, request, contents = asked.service, asked.request, asked.exchange.contents
    most = most_tokens(service.policy.limits, model.running.context_length, model.bounds)
    rules = service.substitutions_in("prompt")
    least = prompts.at_least(request, model.tokenizer)
    if not rules and least > most:  # what waits for its turn takes memory
        raise too_long(most, least if service.rounding == 1 else None, exact=False)
    length, turns, leaving = prompts.length(request), prompts.take_turns(request, given), prompts.Leaving()
    length += 0 if contents is None else contents.nbytes
    try:
        return await service.prompts.ready(length, lambda: prompts.encode(
            request, turns, model.running.template, model.tokenizer, rules, most, leaving, offer.path, guided=guided,
            exact=service.rounding == 1, stand_ins=contents, looks=service.looks))
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
    thinking.take_unread(template, request, ignored)
    found = thinking.variables(template, request, ignored)
    findings.require(ignored)
    return found


def _shift_keep(model: ServedModel, prompt: PromptTokens) -> int | None:
    """Tokens that stay where a full context drops its older half: the beginning-of-text token. None
    where the answer ends then, as it does with a negative prompt."""
    shifts = model.policy.context_shift and not prompt.negative
    return int(prompt.tokens[0] == model.tokenizer.bos) if shifts else None
