"""Mistral Small 3.2, Devstral, Ministral 3, Magistral: `[TOOL_CALLS]name[ARGS]{…}`.

Source: mistral-common's tokenizers v11 and v13, and the models' templates. v11 has `[CALL_ID]` and
an id after the name.
"""

from __future__ import annotations

from appliance.text.calls.named.shape import NamedCalls, format_of
from appliance.text.calls.reading.heads import Head

_SHAPE = NamedCalls("[TOOL_CALLS]", Head("{name}[ARGS]"), aside=Head("[CALL_ID]{id}"))


def _recognises(source: str) -> bool:
    return "[TOOL_CALLS]" in source and "[ARGS]" in source


FORMAT = format_of("mistral-args", _recognises, _SHAPE, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
