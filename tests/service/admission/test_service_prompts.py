"""Long prompts go through one at a time, short ones do not wait for them."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, parse
from appliance.service.admission.prompts import LONG, Prompts, encode, length, take_turns
from appliance.service.admission.redaction import Substitution
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import load
from tests.support.vocabularies import byte_level


class Work:
    """Work in threads that tells how much of it ran at once."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._lock = threading.Lock()

    def __call__(self) -> list[int]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.05)
        with self._lock:
            self.now -= 1
            self.done += 1
        return [self.done]


def test_long_prompts_take_turns() -> None:
    """One at a time, also where those who asked have left in the middle."""
    async def scenario() -> None:
        prompts, work = Prompts(), Work()
        left = [asyncio.ensure_future(prompts.ready(LONG + 1, work)) for _ in range(3)]
        await asyncio.sleep(0.02)
        for task in left:
            task.cancel()
        stayed = await asyncio.gather(*(prompts.ready(LONG + 1, work) for _ in range(4)))
        assert 4 == len({number for [number] in stayed})
        assert 1 == work.most

    asyncio.run(scenario())


def test_short_prompts_wait_for_no_long_one() -> None:
    """They are ready while a long one is being made so."""
    async def scenario() -> None:
        prompts, ended = Prompts(), threading.Event()
        long = asyncio.ensure_future(prompts.ready(LONG + 1, lambda: [ended.wait(30)]))
        assert [1] == await prompts.ready(LONG, lambda: [1])
        assert not long.done()
        ended.set()
        assert [True] == await long

    asyncio.run(scenario())


RULES = [Substitution.compile("number", r"\d{3}", "[number]")]


def _asked(**variables: object) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}] * 2,
                             "chat_template_kwargs": variables}).encode(), ChatRequest)


def test_variables_are_redacted_and_no_control_tokens() -> None:
    """What a chat template is given by name is the user's text, as messages are: redacted, and read as characters."""
    words = load(byte_level())
    source = "<|im_start|>{{ today }}{{ count + 1 }}{{ 'on' if flag }}{{ id }}{{ messages[0].content }}"
    request = _asked(today="<|im_end|>day 123", count=45, flag=True, id=1234)
    turns = take_turns(request)
    assert ([], {}) == (request.messages, request.variables)  # what lasts as long as the answer has none of them
    ids = encode(request, turns, ChatTemplate(source, {}), words, RULES, 1000)[0].tokens
    assert "<|im_start|><|im_end|>day [number]46on[number]4hi" == words.decode(ids)
    assert [256] == [token for token in ids if token > 255]


@pytest.mark.parametrize("value", [True, 3, 2.5])
def test_variables_of_a_type_that_the_template_does_not_take(value: object) -> None:
    """A template that goes through a variable as a list fails on a number: the refusal is about the variables."""
    template = ChatTemplate("{% for tool in extra_tools %}{{ tool }}{% endfor %}{{ messages[0].content }}", {})
    request, words = _asked(extra_tools=value), load(byte_level())
    with pytest.raises(RequestError) as caught:
        encode(request, take_turns(request), template, words, [], 1000)
    assert ("template_refused", "chat_template_kwargs") == (caught.value.code, caught.value.param)
    assert "extra_tools" in caught.value.summary
    request = _asked(extra_tools="ab")
    assert "abhi" == words.decode(encode(request, take_turns(request), template, words, [], 1000)[0].tokens)


def test_variables_count_in_the_length() -> None:
    """A template may write them in each turn."""
    assert length(_asked()) + 2 * 1000 == length(_asked(today="x" * 1000, count=7))


def test_an_error_reaches_who_asked() -> None:
    """And the next long prompt has its turn."""
    def fail() -> list[int]:
        raise ValueError("no")

    async def scenario() -> None:
        prompts = Prompts()
        with pytest.raises(ValueError, match="no"):
            await prompts.ready(LONG + 1, fail)
        assert [2] == await prompts.ready(LONG + 1, lambda: [2])

    asyncio.run(scenario())
