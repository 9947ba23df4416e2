"""Command R7B and A: `<|START_ACTION|>` and a JSON list; Command R and R+: `Action:` and a fence.

Source: Cohere's templates and its "Tool use" pages.
"""

from __future__ import annotations

from appliance.text.calls.objects.shape import ObjectCalls, format_of

_ACTION = ObjectCalls(opens=("<|START_ACTION|>",), close="<|END_ACTION|>", name="tool_name", arguments="parameters",
                      before="[\n    ", between=",\n    ", after="\n]<|END_ACTION|>",
                      first=r'"\"tool_call_id\": \"" /[0-9]{1,2}/ "\", "')
_FENCES = ("Action: ```json", "Action:```json", "Action:\n```json")
_FENCE = ObjectCalls(opens=_FENCES, close="```", name="tool_name", arguments="parameters",
                     before="\n[\n    ", between=",\n    ", after="\n]```")

ACTION = format_of("command-r7b", lambda source: "<|START_ACTION|>" in source, _ACTION,
                   ("<|START_ACTION|>", "<|END_ACTION|>"))
FENCE = format_of("command-r", lambda source: any(
    fence in source or fence.replace("\n", "\\n") in source for fence in _FENCES), _FENCE, ())
