"""Llama 3.1 to 3.3: a bare JSON object, or one after `<|python_tag|>`.

Source: Meta's prompt formats of Llama 3.1, "JSON based tool calling", and the models' templates.
They allow one call in an answer. A bare object is a call only if a tool of that name was offered.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_SHAPE = ObjectCalls(opens=("<|python_tag|>",), bare=True, arguments="parameters")


def _recognises(source: str) -> bool:
    return '"parameters": ' in source and "<|start_header_id|>" in source and '{"name": ' in source


FORMAT = format_of("llama-3", _recognises, _SHAPE, ("<|python_tag|>",))
