"""The format for templates without tools: `{"tool_call": {"name": …, "arguments": …}}`, bare.

The prompt explains it, since no model was trained on it: `instructions` is that text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from appliance.text.calls.objects.shape import ObjectCalls, format_of
from appliance.text.calls.reading.pieces import ToolSpec

_SHAPE = ObjectCalls(bare=True, wraps=("tool_call", "tool_calls"), between="\n")
_INTRODUCTION = "You may call functions. These are their names, and JSON Schemas of their arguments:"
_CONCLUSION = ('To call a function, answer with nothing but {"tool_call": {"name": "<its name>", "arguments": {<its '
               'arguments>}}}, one line for each call. The results come in the next message. Answer in plain text '
               "where no function is needed.")

FORMAT = format_of("generic", lambda _source: True, _SHAPE, ())
lead = _SHAPE.lead
"""Read a call at the beginning of an answer, as a part of another format's program."""


def instructions(tools: Sequence[ToolSpec]) -> str:
    """The system text that offers the tools: JSON of each, a line each, between two sentences."""
    lines = [json.dumps({"name": tool.name, "description": tool.description or "", "parameters": tool.parameters},
                        ensure_ascii=False) for tool in tools]
    return "\n".join([_INTRODUCTION, *lines, _CONCLUSION])
