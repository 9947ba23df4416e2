"""Phi-4-mini: `<|tool_call|>` and a JSON list.

Source: the model card and template of Phi-4-mini-instruct. Its objects may have the call under
`function`, as OpenAI's API has it.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_SHAPE = ObjectCalls(opens=("<|tool_call|>", "functools"), close="<|/tool_call|>", before="[", between=", ",
                     after="]<|/tool_call|>")

FORMAT = format_of("phi-4-mini", lambda source: "<|/tool|>" in source or "<|/tool_call|>" in source, _SHAPE,
                   ("<|tool_call|>", "<|/tool_call|>"))
