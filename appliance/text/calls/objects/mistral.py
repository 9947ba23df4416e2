"""Mistral 7B v0.3, Nemo, Large 2407: `[TOOL_CALLS]` and a JSON list.

Source: mistral-common's tokenizers v2 and v3, and the models' templates.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_SHAPE = ObjectCalls(opens=("[TOOL_CALLS]",), before="[", between=", ", after="]")


def _recognises(source: str) -> bool:
    return "[TOOL_CALLS]" in source and "[ARGS]" not in source


FORMAT = format_of("mistral", _recognises, _SHAPE, ("[TOOL_CALLS]",))
