"""Models that differ in their marks only.

Source: the models' templates.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.text.calls.objects.shape import ObjectCalls, format_of
from appliance.text.calls.reading.format import CallFormat


def _list(name: str, open: str, close: str, recognises: Callable[[str], bool] | None = None) -> CallFormat:
    shape = ObjectCalls(opens=(open,), close=close, before="[", between=", ", after="]" + close)
    return format_of(name, recognises or (lambda source: open in source), shape, (open, close) if close else ())


NEMOTRON = _list("nemotron-nano-2", "<TOOLCALL>", "</TOOLCALL>")
FIREFUNCTION = _list("firefunction-2", "functools", "", lambda source: "functools[" in source)
APRIEL = _list("apriel", "<tool_calls>", "</tool_calls>", lambda source: "<tool_calls>[" in source)
MINIMAX_M1 = format_of(
    "minimax-m1", lambda source: "<tool_calls>" in source and "<beginning_of_sentence>" in source,
    ObjectCalls(opens=("<tool_calls>",), close="</tool_calls>", before="\n", between="\n", after="\n</tool_calls>"), ())
GIGACHAT_3 = format_of(
    "gigachat-3", lambda source: "function call" in source and "<|role_sep|>" in source,
    ObjectCalls(opens=("<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n")),
    ("<|message_sep|>", "<|role_sep|>"))
GIGACHAT_3_1 = format_of("gigachat-3.1", lambda source: "<|function_call|>" in source,
                         ObjectCalls(opens=("<|function_call|>",)), ("<|function_call|>",))
