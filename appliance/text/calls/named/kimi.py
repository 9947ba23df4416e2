"""Kimi K2: `functions.name:0` and arguments, within a section.

Source: Moonshot's `docs/tool_call_guidance.md` of Kimi-K2, and the models' templates.
"""

from __future__ import annotations

from appliance.text.calls.named.shape import NamedCalls, format_of
from appliance.text.calls.reading.heads import Head

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_BEGIN, _SEP, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

FORMAT = format_of("kimi-k2", lambda source: _SECTION[0] in source,
                   NamedCalls(_BEGIN, Head("functions.{name}:{number}" + _SEP), _END, _SECTION),
                   (*_SECTION, _BEGIN, _SEP, _END))
