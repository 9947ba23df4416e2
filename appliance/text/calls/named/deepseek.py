"""DeepSeek V3 and R1, with arguments in a fence; V3.1, without.

Source: the models' templates and model cards.
"""

from __future__ import annotations

from appliance.text.calls.named.shape import NamedCalls, format_of
from appliance.text.calls.reading.heads import Head

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_BEGIN, _SEP, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (*_SECTION, _BEGIN, _SEP, _END)

_FENCED = NamedCalls(_BEGIN, Head("function" + _SEP + "{name}\n```json\n"), "\n```" + _END, _SECTION, between="\n")
_PLAIN = NamedCalls(_BEGIN, Head("{name}" + _SEP), _END, _SECTION)


def _recognises(source: str) -> bool:
    return _SECTION[0] in source or "<｜tool▁outputs▁begin｜>" in source


FENCED = format_of("deepseek-r1", lambda source: _recognises(source) and "```json" in source, _FENCED, _MARKERS)
PLAIN = format_of("deepseek-v3.1", _recognises, _PLAIN, _MARKERS)
