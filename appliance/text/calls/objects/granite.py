"""Granite 3: `<|tool_call|>` and a JSON list. Granite 4 writes Hermes' format.

Source: IBM's model cards, and the models' templates.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_SHAPE = ObjectCalls(opens=("<|tool_call|>", "<tool_call>"), close="</tool_call>", before="[", between=", ", after="]")

FORMAT = format_of("granite-3", lambda source: "<|tool_call|>" in source and "<|start_of_role|>" in source, _SHAPE,
                   ("<|tool_call|>",))
