"""The answers of one request: how many there are, and which of them the caller gets.

    number of an answer   prompt * tried + its number among those to the prompt
    tried                 `best_of`, or `n`
    told                  `n` of these, by the likelihood that the model gives to their tokens

The likelihood of an answer is the mean log-probability of its tokens, as `logprobs` tells them. So
OpenAI's older API defines `best_of`. An answer without tokens comes last.

With beam search the answers to a prompt are the `n` best texts, which one search finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from appliance.api import findings
from appliance.api.answers import AnswerPart, Finish
from appliance.api.problems import RequestError
from appliance.api.wire import CompletionRequest, SamplingRequest
from appliance.api.wishes.features import features_of
from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.events import ENTRY, Logprobs
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.seeds import seed_of
from appliance.policy.bounds import OutsideError, length_penalty
from appliance.policy.schema import Limits
from appliance.policy.schema.sampling import SamplingBounds


@dataclass(frozen=True)
class Choices:
    """How many answers a request has."""

    prompts: int = 1
    tried: int = 1
    told: int = 1

    @property
    def count(self) -> int:
        """Answers that are made."""
        return self.prompts * self.tried

    @property
    def ranked(self) -> bool:
        """Whether the caller gets only the best of them."""
        return self.told < self.tried


def choices_of(request: SamplingRequest, limits: Limits) -> Choices:
    """The answers that a request asks for; RequestError for more than the policy allows."""
    prompts = len(request.prompts) if isinstance(request, CompletionRequest) else 1
    found = Choices(prompts, request.tried, request.told)
    if found.count > limits.choices:
        name = "best_of" if found.ranked else "n" if found.tried > 1 else "prompt"
        each = f", to {prompts} prompts" if prompts > 1 else ""
        raise RequestError("invalid_value", f"{name}: at most {limits.choices} answers of one request are allowed; "
                           f"found: {found.count}{each}", param=name)
    return found


def beam_of(request: SamplingRequest, choices: Choices, bounds: SamplingBounds, places: int) -> Beam | None:
    """The beam search that a request asks for, within the policy's bounds; None where it asks for
    none. `places`: answers that can be in progress at the same time. RequestError names what is not
    allowed."""
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1):
            raise RequestError("unsupported_parameter", "length_penalty: it needs use_beam_search = true",
                               param="length_penalty")
        return None
    width, most = choices.tried, min(bounds.max_beams, places) if bounds.extended else 0
    if width > most:
        words = f"at most {most} texts at the same time are allowed; found: n = {width}"
        raise RequestError("unsupported_parameter", f"use_beam_search: {words if most else 'the policy allows none'}",
                           param="use_beam_search")
    findings.require_together(features_of(request) | {"use_beam_search"})
    try:
        return Beam(width, length_penalty(bounds, request.length_penalty))
    except OutsideError as error:
        raise RequestError("invalid_value", str(error), param=error.name) from None


def answers_to(asked: GenerationRequest, prompt: int, choices: Choices, *, logged: bool,
               echoed: bool) -> tuple[GenerationRequest, ...]:
    """The answers to one prompt, by its number: `asked`, each with its own seed. Answers that are
    ranked need log-probabilities, `logged` or not; the first tells those of a prompt that is
    `echoed`, since it reads it."""
    top = asked.sampling.top_logprobs
    if choices.ranked and not logged:
        top = 0
    return tuple(replace(
        asked, choice=prompt * choices.tried + number, prompt_logprobs=echoed and logged and not number,
        sampling=replace(asked.sampling, seed=seed_of(asked.sampling.seed, number), top_logprobs=top))
        for number in range(choices.tried))


class Likelihood:
    """The likelihood of each answer so far."""

    def __init__(self) -> None:
        self._sums, self._counts = dict[int, float](), dict[int, int]()

    def add(self, event: Logprobs) -> None:
        """Take a token into account."""
        _token, logprob = ENTRY.unpack_from(event.packed)
        self._sums[event.choice] = self._sums.get(event.choice, 0.0) + logprob
        self._counts[event.choice] = self._counts.get(event.choice, 0) + 1

    def of(self, choice: int) -> float:
        """The mean of an answer's tokens."""
        count = self._counts.get(choice, 0)
        return self._sums[choice] / count if count else -math.inf


def best(choices: Choices, likelihood: Likelihood, parts: Sequence[AnswerPart],
           ends: Mapping[int, Finish]) -> tuple[list[AnswerPart], dict[int, Finish]]:
    """Return the answers that the caller gets, the likeliest to each prompt first, with new
    numbers; and why each ended. Of answers that are as likely the earlier comes first."""
    if not choices.ranked:
        return list(parts), dict(ends)
    told: list[AnswerPart] = []
    reasons: dict[int, Finish] = {}
    for first in range(0, choices.count, choices.tried):
        order = sorted(range(first, first + choices.tried), key=lambda number: (-likelihood.of(number), number))
        for number in order[:choices.told]:
            reasons[len(told)] = ends[number]
            told.append(replace(parts[number], choice=len(told)))
    return told, reasons
