"""GLM 4.5 to 4.7, Ling 3, Laguna, Spark: `<arg_key>` and `<arg_value>`.

Source: the models' templates. GLM 4.7 writes no line breaks between the tags.
"""

from __future__ import annotations

from appliance.text.calls.reading.heads import Head
from appliance.text.calls.tagged.shape import TaggedCalls, format_of


def _shape(gap: str) -> TaggedCalls:
    return TaggedCalls(Head("{name}" + gap), "</tool_call>", Head("<arg_key>{key}</arg_key>" + gap + "<arg_value>"),
                       "</arg_value>", opens=("<tool_call>",), gap=gap, between=gap + "<tool_call>")


_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _has_lines(source: str) -> bool:
    return "</arg_key>\\n<arg_value>" in source or "</arg_key>\n<arg_value>" in source


LINES = format_of("glm-4.5", lambda source: "<arg_key>" in source and _has_lines(source), _shape("\n"), _MARKERS)
PLAIN = format_of("glm-4.7", lambda source: "<arg_key>" in source, _shape(""), _MARKERS)
