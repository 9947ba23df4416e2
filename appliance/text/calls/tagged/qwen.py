"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5, with `<tool_call>`; Seed-OSS, with a tag of its own.

Source: the models' templates, and `qwen3coder_tool_parser.py` of Qwen3-Coder.
"""

from __future__ import annotations

from appliance.text.calls.reading.heads import Head
from appliance.text.calls.tagged.shape import TaggedCalls, format_of


def _shape(tag: str, pad: str) -> TaggedCalls:
    return TaggedCalls(Head("<function={name}>\n"), "</function>", Head("<parameter={key}>"), "</parameter>",
                       opens=(f"<{tag}>",), closes=(f"</{tag}>",), pad=pad, gap="\n", before="\n",
                       between=f"\n</{tag}>\n<{tag}>\n", after=f"\n</{tag}>")


CODER = format_of("qwen3-coder", lambda source: "<tool_call>" in source and "<parameter=" in source,
                  _shape("tool_call", "\n"), ("<tool_call>", "</tool_call>"))
SEED = format_of("seed-oss", lambda source: "<seed:tool_call>" in source, _shape("seed:tool_call", ""),
                 ("<seed:tool_call>", "</seed:tool_call>"))
