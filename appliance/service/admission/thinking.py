"""How much a model thinks: a request's words for it, as variables of the model's chat template.

They are wishes. One that the template has no way to say is noted, and the model thinks as it does.
"""

from __future__ import annotations

from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest
from appliance.api.wishes.ignored import Ignored
from appliance.text.calls import readers
from appliance.text.calls.efforts import EFFORTS, variables_of
from appliance.text.template import ChatTemplate

_NONE = "none"
_SWITCHES = ("enable_thinking", "thinking")  # variables of templates that turn thoughts on and off


def take_unread(template: ChatTemplate, request: ChatRequest, ignored: Ignored) -> None:
    """Take variables that a template does not read out of a request, and note them; where nothing
    thinks, one that turns thoughts off asks for nothing."""
    never = readers.thinking_of(template) is None
    for name in [name for name in request.variables if not template.takes(name)]:
        value = request.variables.pop(name)
        if not (never and name in _SWITCHES and value is False):
            ignored.note(("chat_template_kwargs", name), "the model's chat template takes no such variable")


def variables(template: ChatTemplate, request: ChatRequest, ignored: Ignored) -> dict[str, object]:
    """The variables for a request's effort and budget. RequestError for two that contradict each
    other."""
    never, effort = readers.thinking_of(template) is None, request.reasoning_effort
    found: dict[str, object] = dict(_by_budget(template, request, never, ignored))
    if effort is not None:
        known = [each for each in EFFORTS if variables_of(template, each) or (never and each == _NONE)]
        if effort in known:
            found = {**variables_of(template, effort), **found}
        else:
            ignored.note(("reasoning_effort",), "the model's chat template has no way to say this; allowed: "
                         f"{', '.join([*known, 'null'])}")
    for name, value in request.variables.items():
        if found.get(name, value) != value:
            param = f"chat_template_kwargs.{name}"
            raise RequestError("invalid_value", f"{param}: reasoning_effort or a budget gives it another value",
                               param=param)
    return found


def _by_budget(template: ChatTemplate, request: ChatRequest, never: bool, ignored: Ignored) -> dict[str, object]:
    """The variables for a budget of tokens: none at all is an effort, too."""
    if request.budget is None:
        return {}
    name, tokens = request.budget
    by_number = {key: value for key, value in variables_of(template, "", tokens).items() if value == tokens}
    found = by_number or (variables_of(template, _NONE) if tokens == 0 else {})
    if not found and not (never and tokens == 0):
        ignored.note((name,), "the model's chat template has no such budget; max_completion_tokens bounds the whole "
                     "answer")
    return dict(found)
