"""How much there is in a body: counted before it is read, and read where it stops nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.api import marks
from appliance.api.adapters import plain
from appliance.api.problems import RequestError
from appliance.api.wishes.ignored import Ignored
from appliance.service.admission.privacy import Timing
from appliance.service.answering import respond as serving
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring
from tests.service.answering.test_service_guard import service

__all__ = ["service"]

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.sampled_from('a,"[{}]\\:\u00e4'), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('k,"\\['), max_size=3), inner))


def _marks(value: Any) -> int:
    """Strings, and the brackets and commas between them, as JSON's grammar has them."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(1 + _marks(item) for item in value.values())
    return 1 + max(0, len(value) - 1) + sum(map(_marks, value)) if isinstance(value, list) else 0


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_marks_are_those_of_the_grammar(value: Any, indent: int | None, plain: bool) -> None:
    """Whatever is in its strings, a body passes with as many as it has, and not with one less."""
    body, exact = json.dumps(value, indent=indent, ensure_ascii=plain).encode(), _marks(value)
    assert marks.count(body, exact) <= exact
    assert not exact or marks.count(body, exact - 1) >= exact


@pytest.mark.parametrize("body", [b'"', b'{"a', b'"\\', b'"\\"', b'\\"', b"", b",", b'"a"b"c', b'["\\\\"]'])
def test_what_is_no_json_is_counted_as_well(body: bytes) -> None:
    """Without end where a string has none."""
    assert 0 <= marks.count(body, 0) <= len(body) + 1


def test_honest_bodies_are_far_below() -> None:
    """The longest conversations that the API takes, with a part in each turn, and a whole context of token ids."""
    turn = {"role": "user", "content": [{"type": "text", "text": 'He said: "a, b, [c], {d}", and so on.' * 20}]}
    marks.check(json.dumps({"model": "m", "messages": [turn] * 4096}).encode(), marks.MOST)
    marks.check(json.dumps({"model": "m", "prompt": list(range(131_072))}).encode(), marks.MOST + 131_072)
    with pytest.raises(RequestError):
        marks.check(json.dumps({"messages": [turn] * 6000}).encode(), marks.MOST)


@pytest.mark.parametrize(("messages", "aside"), [(1, False), (4000, True)])
def test_long_bodies_are_read_aside(messages: int, aside: bool, service: Wiring) -> None:
    """The event loop goes on while a long one is read; a short one is read at once."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}] * messages}).encode()

    exchange = Exchange("/v1/chat/completions", Timing())

    async def turns() -> int:
        reading = asyncio.ensure_future(serving._parse(service, exchange, body, plain.CHAT, Ignored()))
        others = 0
        while not reading.done():
            await asyncio.sleep(0)
            others += 1
        assert messages == len((await reading).request.messages)
        return others

    assert aside == (asyncio.run(turns()) > 1)
