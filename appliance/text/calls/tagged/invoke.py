"""MiniMax M2 and DeepSeek V3.2 and V4: `<invoke name="…">`, and a tag for each parameter.

Source: the models' templates. DeepSeek says of each parameter whether it is a string.
"""

from __future__ import annotations

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.tagged.shape import TaggedCalls, format_of

MINIMAX = format_of(
    "minimax-m2", lambda source: "<minimax:tool_call>" in source,
    TaggedCalls(Head('<invoke name="{name}">\n'), "</invoke>", Head('<parameter name="{key}">'), "</parameter>",
                opens=("<minimax:tool_call>",), closes=("</minimax:tool_call>",), gap="\n", before="\n", between="\n",
                after="\n</minimax:tool_call>"), ("<minimax:tool_call>", "</minimax:tool_call>"))


def _dsml(name: str, section: str) -> CallFormat:
    mark = "｜DSML｜"
    shape = TaggedCalls(Head(f'<{mark}invoke name="{{name}}">\n'), f"</{mark}invoke>",
                        Head(f'<{mark}parameter name="{{key}}" string="{{type}}">'), f"</{mark}parameter>",
                        opens=(f"<{mark}{section}>",), closes=(f"</{mark}{section}>",), kinds=("true", "false"),
                        gap="\n", before="\n", between="\n", after=f"\n</{mark}{section}>")
    return format_of(name, lambda source: mark in source and f"{section}>" in source, shape, (mark,))


DEEPSEEK_V3_2 = _dsml("deepseek-v3.2", "function_calls")
DEEPSEEK_V4 = _dsml("deepseek-v4", "tool_calls")
