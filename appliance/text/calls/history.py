"""Calls of earlier turns, for templates that would lose them.

A template may write one call of a turn only, or refuse several: the turn becomes several turns,
each with its result. A template may write none: they become text of the turn, in the model's
format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from appliance.text.calls.readers import native_of
from appliance.text.jinja.marks import concatenate, mark
from appliance.text.template import ChatTemplate

Message = Mapping[str, Any]


def fit(template: ChatTemplate, messages: Sequence[Message]) -> list[Message]:
    """The messages of a chat, as far as the template takes calls and results at all, so that it
    loses no call. Results name their calls by `tool_call_id`. Names and arguments stay marked as
    from outside."""
    form = native_of(template)
    if form is not None and form.spell is not None and not template.shows_calls:
        return [_spelled(message, form.spell) if message.get("tool_calls") else message for message in messages]
    return list(messages) if template.shows_several_calls else list(_one_by_one(messages))


def _spelled(message: Message, spell: Any) -> Message:
    """A turn with its calls as text."""
    calls = [(str(call["function"]["name"]), str(call["function"]["arguments"])) for call in message["tool_calls"]]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    said = [mark(message["content"]), "\n"] if message.get("content") else []
    return {**rest, "content": concatenate([*said, spell(calls)])}


def _one_by_one(messages: Sequence[Message]) -> Iterator[Message]:
    """Turns with one call each, followed by its result. The text and the thoughts of a turn go
    with its first call."""
    waiting = list(reversed(messages))
    while waiting:
        message = waiting.pop()
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = []
        while waiting and waiting[-1].get("role") in ("tool", "function"):
            results.append(waiting.pop())
        for index, call in enumerate(calls):
            first = message if index == 0 else {"role": message["role"], "content": None}
            yield {**first, "tool_calls": [call]}
            yield from [each for each in results if each.get("tool_call_id") == call.get("id")]
        ids = [call.get("id") for call in calls]
        yield from [each for each in results if each.get("tool_call_id") not in ids]
