"""Solar Open: an id, the name and arguments between marks; messages as Harmony has them.

Source: the model's template. A thought ends with its message, and the answer's text is another one.
"""

from __future__ import annotations

from dataclasses import replace

from appliance.text.calls.named.shape import NamedCalls, format_of
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.reading.thinking import ThoughtMarks

_SECTION = ("<|tool_calls|>", "<|calls|>")
_BEGIN, _NAME, _ARGUMENTS, _END = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"
_SHAPE = NamedCalls(_BEGIN, Head("{id}" + _NAME + "{name}" + _ARGUMENTS), _END, _SECTION)
_NEXT = "<|begin|>assistant"
_THINKING = ThoughtMarks("solar", lambda source: _SECTION[0] in source, "<|think|>", "<|end|>" + _NEXT,
                         frame=("<|content|>", "<|end|>"), tokens=("<|begin|>", "<|end|>"))

FORMAT = replace(format_of("solar-open", _THINKING.recognises, _SHAPE, (*_SECTION, _BEGIN, _NAME, _ARGUMENTS, _END)),
                 thinking=_THINKING)
