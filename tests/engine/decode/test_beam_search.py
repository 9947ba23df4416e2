"""Beam search: against all texts that there are, against vLLM's definition, and on the engine's pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from appliance.engine.batch.batcher import Batcher
from appliance.engine.decode.beam_search import Beam, BeamSearch, Moves
from appliance.engine.decode.events import ENTRY, End, Text
from appliance.engine.decode.generation import Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.errors import CapacityError, EngineError
from appliance.text.tokenizer.stream import TextStream
from tests.support.engines import running

V = 4
END = 0
PENALTIES = (-1.0, 0.0, 0.5, 1.0, 2.0)
PROMPT = (1, *range(10, 140))


class Toy:
    """A model of V tokens whose distribution depends on the whole text, drawn from a seed."""

    def __init__(self, seed: int, vocabulary: int = V) -> None:
        self._seed, self._vocabulary = seed, vocabulary

    def best(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        """The best tokens after a text."""
        logits = np.random.default_rng([self._seed, *tokens]).normal(size=self._vocabulary) * 2
        logprobs = logits - math.log(np.exp(logits).sum())
        return sorted(enumerate(map(float, logprobs)), key=lambda pair: -pair[1])[:count]


def searched(toy: Toy, beam: Beam, prompt: int, most: int) -> list[tuple[tuple[int, ...], float, bool]]:
    """The texts that a search finds, their sums, and whether each ended; places stay apart on the way."""
    search, held = BeamSearch(beam, prompt, most, {END}), {0: ()}
    while not search.over:
        moves = search.step([toy.best(each.tokens, beam.candidates) for each in search.live])
        _follow(held, moves)
        for each in search.live:
            assert each.tokens[:-1] == held[each.place]
            held[each.place] = each.tokens
        assert {each.place for each in search.live} == set(held)
    return [(each.tokens, each.total, each.ended) for each in search.results()]


def _follow(held: dict[int, tuple[int, ...]], moves: Moves) -> None:
    """What places hold: one that is left holds nothing, a copy begins in an empty one."""
    for place in moves.left:
        del held[place]
    for parent, child in moves.copies:
        assert child not in held
        held[child] = held[parent]


def every(toy: Toy, most: int) -> list[tuple[tuple[int, ...], float, bool]]:
    """All texts that there are: those that ended, and those of the full length."""
    found = []
    for length in range(most + 1):
        for tokens in itertools.product(range(1, V), repeat=length):
            total = sum(dict(toy.best(tokens[:at], V))[token] for at, token in enumerate(tokens))
            if length < most:
                found.append((tokens, total + dict(toy.best(tokens, V))[END], True))
            else:
                found.append((tokens, total, False))
    return found


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_a_wide_search_is_exhaustive(most: int, penalty: float) -> None:
    """With a width of V^(n-1) the best text of all is found, and so are the next ones in their order."""
    for seed in range(20):
        toy, prompt = Toy(seed), 3
        everything = sorted(every(toy, most), key=lambda each: -each[1] / (prompt + len(each[0])) ** penalty)
        found = searched(toy, Beam(V ** (most - 1), penalty), prompt, most)
        expected = everything[:len(found)]
        assert 1 == len({len(found), min(V ** (most - 1), len(everything))})
        assert [(tokens, ended) for tokens, _, ended in expected] == [(tokens, ended) for tokens, _, ended in found]
        assert [total for _, total, _ in expected] == pytest.approx([total for _, total, _ in found])


def plain(toy: Toy, width: int, penalty: float, prompt: int, most: int) -> list[tuple[tuple[int, ...], bool]]:
    """The search as vLLM defines it, without an early end: every step, then the best of all."""
    live, complete = [((), 0.0)], []
    for _ in range(most):
        going = []
        for tokens, total in live:
            for token, logprob in toy.best(tokens, 2 * width):
                if token == END:
                    complete.append((tokens, total + logprob, True))
                else:
                    going.append(((*tokens, token), total + logprob))
        live = sorted(going, key=lambda each: each[1], reverse=True)[:width]
    complete += [(tokens, total, False) for tokens, total in live]
    complete.sort(key=lambda each: each[1] / (prompt + len(each[0])) ** penalty, reverse=True)
    return [(tokens, ended) for tokens, _, ended in complete[:width]]


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_an_early_end_changes_nothing(width: int, penalty: float) -> None:
    """The result is that of a search that goes on to the last step."""
    for seed in range(60):
        toy, most, prompt = Toy(seed, 5), 1 + seed % 7, 1 + seed % 3
        found = searched(toy, Beam(width, penalty), prompt, most)
        assert plain(toy, width, penalty, prompt, most) == [(tokens, ended) for tokens, _, ended in found]


def asked(width: int, tokens: int, **more: object) -> GenerationRequest:
    """A search on the engine; texts do not end, but for `ignore_end`."""
    return GenerationRequest(PROMPT, tokens, beam=Beam(width), **{"ignore_end": True, **more})  # type: ignore[arg-type]


def by_hand(width: int, tokens: int) -> list[tuple[int, ...]]:
    """The same on the engine's log-probabilities, each text read from its beginning."""
    with running("tied", context=256) as engine:
        def best(answer: tuple[int, ...]) -> list[tuple[int, float]]:
            sampling = Sampling(temperature=0.0, top_logprobs=min(2 * width, 20))
            request = GenerationRequest((*PROMPT, *answer), 1, sampling, ignore_end=True)
            [advance] = engine.generate(request)
            logprobs = next(event for event in advance.events if type(event).__name__ == "Logprobs")
            return list(_entries(logprobs.packed))[1:]
        search = BeamSearch(Beam(width), len(PROMPT), tokens, ())
        while not search.over:
            search.step([best(each.tokens) for each in search.live])
        return [each.tokens for each in search.results()]


def _entries(packed: bytes) -> list[tuple[int, float]]:
    return list(ENTRY.iter_unpack(packed))


@pytest.mark.parametrize("width", [1, 3, 8])
def test_the_engine_finds_the_same_on_shared_pages(width: int) -> None:
    """The texts of a search on forked pages are those of a search that reads each text anew; nothing is left of it, and
    a page is never held by what others pay for."""
    tokens = 70  # over the end of two pages
    expected = by_hand(width, 12)
    with running("tied", context=256, slots=width) as engine:
        events = [event for advance in engine.generate(asked(width, 12)) for event in advance.events]
        long = [event for advance in engine.generate(asked(width, tokens)) for event in advance.events]
        for found, count in ((events, 12), (long, tokens)):
            assert list(range(width)) == [event.choice for event in found if isinstance(event, End)]
            assert [count] * width == [event.tokens for event in found if isinstance(event, Text) and event.tokens]
        assert (0, 4 * width) == (engine._cache.in_use, engine._cache.unclaimed)
        texts = [event.text for event in events if isinstance(event, Text) and event.tokens]
        assert [_text(engine, each) for each in expected] == texts


def test_a_width_of_the_vocabulary_finds_the_best_pair() -> None:
    """With a width of V, two tokens are the best two of all, on the engine itself."""
    vocabulary, prompt = 48, (1, 20, 30)
    with running("tied", context=64, slots=vocabulary) as engine:
        batcher = engine.acquire()
        generation = Generation(replace(asked(vocabulary, 2), prompt_ids=prompt), engine.tokenizer, vocabulary,
                                engine.context, engine._scratch)
        one = batcher.add(generation)
        events = []
        while not generation.finished:
            [(_, advance)] = batcher.run()
            events += advance.events
        batcher.remove(one)
        assert generation.search is not None
        found = [(each.tokens, each.total) for each in generation.search.results()]
        firsts = _logprobs(batcher, prompt, vocabulary)
        totals = np.array([firsts[token] + _logprobs(batcher, (*prompt, token), vocabulary)
                           for token in range(vocabulary)])
        order = np.argsort(-totals, axis=None, kind="stable")[:vocabulary]
        expected = [tuple(int(each) for each in np.unravel_index(place, totals.shape)) for place in order]
        assert expected == [tokens for tokens, _ in found]
        assert totals.reshape(-1)[order] == pytest.approx([total for _, total in found])
        engine.release()


def _logprobs(batcher: Batcher, prompt: Sequence[int], vocabulary: int) -> np.ndarray:
    """Log-probabilities of the first tokens of a vocabulary after a prompt."""
    rows = batcher.forward.run(prompt, range(len(prompt)), [0] * len(prompt), [len(prompt) - 1])
    wide = np.array(rows[0][:vocabulary], np.float64)
    batcher.forward.boundary.forget(0)
    batcher.seats._cache.give_back(0)
    return wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())


def _text(engine: Engine, tokens: Sequence[int]) -> str:
    """A text without a character that is not complete."""
    stream = TextStream(engine.tokenizer, frozenset())
    return "".join(map(stream.push, tokens))


class _Broken(BeamSearch):
    """A search that fails in a way that nobody foresaw."""

    def step(self, best: object) -> Moves:
        raise IndexError(best)


def test_a_search_that_cannot_go_on_fails_alone() -> None:
    """Its results all end, with an error; an answer beside it goes on."""
    with running("tied", context=256, slots=3) as engine:
        batcher = engine.acquire()
        made = [Generation(each, engine.tokenizer, engine.tokenizer.vocab_size, engine.context, engine._scratch)
                for each in (asked(2, 4), GenerationRequest((1, 5, 6), 40, ignore_end=True))]
        made[0].search = _Broken(Beam(2), len(PROMPT), 4, ())
        items = [batcher.add(each) for each in made]
        search, failed = items[0], []
        while not all(each.finished for each in made):
            failed += [advance for one, advance in batcher.run() if one is search]
            if made[0].finished and search in items:
                items.remove(search)
                batcher.remove(search)
        batcher.remove(items.pop())
        engine.release()
        assert ["engine-internal"] == [each.error.code for each in failed if each.error is not None]
        assert [0, 1] == [event.choice for each in failed for event in each.events if isinstance(event, End)]
        assert 40 == len(made[1].tokens)


def test_beside_others_and_cancelled() -> None:
    """A search beside other answers has the same texts; what is cancelled ends all its choices, and gives all back."""
    with running("tied", context=256, slots=6) as engine:
        alone = [advance.events for advance in engine.generate(asked(3, 20))]
        scheduler, seen, other, cancelled = Scheduler(engine), [], [], []
        handles = [scheduler.submit(asked(3, 20), "a", lambda advance: seen.append(advance.events)),
                   scheduler.submit(GenerationRequest((1, 5, 6), 30, ignore_end=True), "b", other.append)]
        assert all(handle.wait(60) for handle in handles)
        assert alone[-1] == seen[-1]
        late = scheduler.submit(asked(3, 100), "a", lambda advance: (cancelled.append(advance.events), late.cancel()))
        assert late.wait(60)
        assert [("cancelled", choice) for choice in range(3)] == [
            (event.reason, event.choice) for event in cancelled[-1] if isinstance(event, End)]
        with pytest.raises(CapacityError, match="beam search takes the places of 7 answers; there is 6"):
            scheduler.submit(asked(7, 5), "a", cancelled.append)
        assert scheduler.close(60)
        assert (0, 24) == (engine._cache.in_use, engine._cache.unclaimed)


@pytest.mark.parametrize("more", [
    {"stop": ("a",)}, {"sampling": Sampling(top_logprobs=0)}, {"sampling": Sampling(token_healing=1)},
    {"shift_keep": 1}, {"prompt_logprobs": True}, {"max_tokens": 0}, {"beam": Beam(0)}])
def test_refusals(more: dict[str, object]) -> None:
    """What looks at single tokens, or would change the distribution, does not go with a search."""
    with running("tied", context=256) as engine, pytest.raises(EngineError, match="beam search"):
        engine.generation(replace(asked(2, 5), **more))
