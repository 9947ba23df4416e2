"""How many answers a request has, as how many requests it counts, and which answers are told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from appliance.api.answers import AnswerPart
from appliance.api.problems import RequestError
from appliance.api.wire import CompletionRequest, parse
from appliance.engine.decode.events import Logprobs
from appliance.policy.schema import Limits
from appliance.service.admission.limits import Occupancy
from appliance.service.admission.turns import Turns
from appliance.service.answering.choices import Choices, Likelihood, best, choices_of
from appliance.service.answering.lengths import Count, Extent, Lengths, lengths_of
from tests.support.policies import BASE, in_schema, valid, with_lines


def limits_of(lines: str) -> Limits:
    """The limits of a policy."""
    return valid(with_lines("limits", lines, in_schema(2, BASE))).limits


LIMITS = limits_of("prompt_tokens = 100\ngeneration_tokens = 50\nconcurrent_requests = 4\nchoices = 64")


def asked(**more: Any) -> CompletionRequest:
    """A request."""
    return parse(json.dumps({"model": "m", "prompt": "x", **more}).encode(), CompletionRequest)


def lengths(limits: Limits, context: int, prompts: list[int], request: CompletionRequest, choices: Choices) -> Lengths:
    """The bounds of prompts of so many tokens, without negative ones."""
    return lengths_of(limits, Extent(context), [Count(each) for each in prompts], request, choices)


CASES: list[tuple[dict[str, Any], list[int], int | None, int, int | None]] = [
    # request, tokens of its prompts, tokens of an answer (None: refused), requests that it counts as, clamped to
    ({}, [10], 50, 1, None), ({"max_tokens": 51}, [10], 50, 1, 50), ({"n": 2}, [10], 50, 2, None),
    ({"n": 5, "max_tokens": 10}, [100], 10, 1, None), ({"n": 6, "max_tokens": 10}, [100], 10, 2, None),
    ({"n": 8}, [10], 25, 4, 25), ({"n": 60, "max_tokens": 1}, [10], 1, 4, None), ({"best_of": 3}, [10], 50, 3, None),
    ({"n": 4, "max_tokens": 2}, [100, 100, 100], 2, 3, None), ({}, [100] * 5, None, 0, None),
    ({"n": 64, "max_tokens": 1}, [10], 1, 4, None), ({"n": 17, "max_tokens": 1}, [10], 1, 2, None),
    ({"echo": True, "max_tokens": 0}, [100], 0, 2, None),
    ({"echo": True, "max_tokens": 0, "n": 3}, [100], None, 0, None),
    ({"echo": True, "max_tokens": 50}, [100], 50, 3, None), ({"echo": True}, [100, 90], 5, 4, 5)]


@pytest.mark.parametrize(("more", "prompts", "bound", "weight", "clamped"), CASES)
def test_bounds_and_weights(more: dict[str, Any], prompts: list[int], bound: int | None, weight: int,
                            clamped: int | None) -> None:
    """All answers, with prompts that they repeat, fit into the room of the requests that they count as."""
    request = asked(**{**more, "prompt": ["x"] * len(prompts)})
    choices = choices_of(request, LIMITS)
    if bound is None:
        with pytest.raises(RequestError):
            lengths(LIMITS, 1000, prompts, request, choices)
        return
    found = lengths(LIMITS, 1000, prompts, request, choices)
    assert ([bound] * len(prompts), weight, clamped) == (list(found.bounds), found.weight, found.clamped)
    repeated = sum(prompts) * choices.tried if request.echo else 0
    assert repeated + bound * choices.count <= weight * 50
    assert sum(prompts) <= weight * 100


def test_a_request_is_no_heavier_than_others_leave() -> None:
    """Where one may count as three of four, its answers are shorter, and fewer."""
    choices = choices_of(asked(n=8), LIMITS)
    found = lengths_of(LIMITS, Extent(1000), [Count(10)], asked(n=8), choices, heaviest=3)
    assert ((18,), 3, 18) == (found.bounds, found.weight, found.clamped)
    for more, prompts in (({"n": 49, "max_tokens": 1}, [10]), ({}, [100] * 4)):
        with pytest.raises(RequestError, match=r"at most (48 answers|300 tokens)"):
            lengths_of(LIMITS, Extent(1000), [Count(each) for each in prompts], asked(**more),
                       choices_of(asked(**more), LIMITS), heaviest=3)


def test_the_context_bounds_each_answer() -> None:
    """An answer ends where the context does, whatever others may have."""
    request = asked(prompt=["x", "y"], max_tokens=40)
    choices = choices_of(request, LIMITS)
    assert (40, 8) == lengths(LIMITS, 100, [30, 92], request, choices).bounds
    counts = [Count(80), Count(92)]
    assert (20, 8) == lengths_of(LIMITS, Extent(100, own=100, shifts=True), counts, request, choices).bounds
    assert (40, 40) == lengths_of(LIMITS, Extent(100, shifts=True), counts, request, choices).bounds


def test_a_negative_prompt_counts() -> None:
    """Its answer is two sequences, and ends where the longer one's context does."""
    request = asked(max_tokens=50)
    found = lengths_of(LIMITS, Extent(100, shifts=True), [Count(30, 60)], request, choices_of(request, LIMITS))
    assert ((40,), 2) == (found.bounds, found.weight)


def test_a_policy_may_refuse() -> None:
    """What would be clamped is refused by the name of its parameter."""
    limits = limits_of('generation_tokens = 50\nconcurrent_requests = 4\noversized_max_tokens = "refuse"')
    for more, param in (({"max_tokens": 51}, "max_tokens"), ({"n": 8, "max_tokens": 50}, "max_tokens")):
        request = asked(**more)
        with pytest.raises(RequestError) as caught:
            lengths(limits, 1000, [10], request, choices_of(request, limits))
        assert ("generation_length_exceeded", param) == (caught.value.code, caught.value.param)


def test_the_likeliest_are_told() -> None:
    """By the mean of their tokens, not the sum; earlier ones of equals first; those without tokens last."""
    likelihood = Likelihood()
    for choice, values in enumerate([[-1.0, -1.0], [-0.5] * 9, [-2.0], [], [-0.5], [-3.0]]):
        for value in values:
            likelihood.add(Logprobs.of(choice, [(7, value), (8, 0.0)]))
    parts = [AnswerPart(number, str(number)) for number in range(6)]
    told, ends = best(Choices(2, 3, 2), likelihood, parts, dict.fromkeys(range(6), "stop"))
    assert ["1", "0", "4", "5"] == [part.text for part in told]
    assert [0, 1, 2, 3] == [part.choice for part in told] == list(ends)
    assert -math.inf == likelihood.of(3)
    assert parts == best(Choices(2, 3, 3), likelihood, parts, {})[0]


def test_a_heavy_request_gets_its_places() -> None:
    """It gets them one by one, as its tenant's turn comes; others have theirs between, and all come back."""
    begun: list[str] = []
    turns = Turns(4, ["a", "b", "c"])
    first = [turns.ask("a", lambda: begun.append("a")) for _ in range(2)]
    heavy = turns.ask("b", lambda: begun.append("B"), 3)
    assert ["a", "a", "B"] == begun  # one of four is kept for c
    later = [turns.ask("c", lambda: begun.append("c")) for _ in range(2)]
    assert ["a", "a", "B", "c"] == begun
    first[0].leave()
    first[1].leave()
    assert ["a", "a", "B", "c", "B"] == begun  # one is kept for a
    later[0].leave()
    assert ["a", "a", "B", "c", "B", "c"] == begun
    later[1].leave()
    assert ["a", "a", "B", "c", "B", "c", "B"] == begun
    heavy.leave()
    for ticket in later:
        ticket.leave()
    assert (0, 0) == (turns.in_progress, turns.waiting)


def test_places_are_taken_together() -> None:
    """All or none."""
    places = Occupancy(4, [])
    places.take("a", 3)
    with pytest.raises(RequestError, match="too many requests"):
        places.take("a", 2)
    places.take("a")
    places.leave("a", 3)
    assert 1 == places.held()
