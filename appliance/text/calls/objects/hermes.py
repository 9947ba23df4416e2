"""Hermes 2 and 3, Qwen 2.5 and 3, and who follows them: `<tool_call>` around a JSON object.

Source: NousResearch/Hermes-Function-Calling, and the models' chat templates.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_SHAPE = ObjectCalls(opens=("<tool_call>",), close="</tool_call>", before="\n", after="\n</tool_call>",
                     between="\n</tool_call>\n<tool_call>\n")


def _recognises(source: str) -> bool:
    return "<tool_call>" in source and "</tool_call>" in source and "]<]minimax[>[" not in source


FORMAT = format_of("hermes", _recognises, _SHAPE, ("<tool_call>", "</tool_call>"))
