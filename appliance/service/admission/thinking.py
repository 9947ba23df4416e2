"""How much a model thinks: a request's words for it, as variables of the model's chat template.

Nothing of it is silently without effect: a template that has no way to say it gets a refusal. A
model that never thinks takes the efforts and budgets that ask for no thought.
"""

from __future__ import annotations

from appliance.engine.text.calls import readers
from appliance.engine.text.calls.efforts import EFFORTS, variables_of
from appliance.engine.text.template import ChatTemplate
from appliance.service.api.problems import RequestError
from appliance.service.api.wire import ChatRequest

_NONE = "none"


def variables(template: ChatTemplate, request: ChatRequest) -> dict[str, object]:
    """The variables for a request's effort and budget; RequestError where there are none."""
    never, effort = readers.thinking_of(template) is None, request.reasoning_effort
    found: dict[str, object] = dict(_by_budget(template, request, never))
    if effort is not None:
        known = [each for each in EFFORTS if variables_of(template, each) or (never and each == _NONE)]
        if effort not in known:
            raise RequestError("unsupported_parameter", "reasoning_effort: the model's chat template has no way to say "
                               f"this; allowed: {', '.join([*known, 'null'])}", param="reasoning_effort")
        found = {**variables_of(template, effort), **found}
    for name, value in request.variables.items():
        if found.get(name, value) != value:
            param = f"chat_template_kwargs.{name}"
            raise RequestError("invalid_value", f"{param}: reasoning_effort or a budget gives it another value",
                               param=param)
    return found


def _by_budget(template: ChatTemplate, request: ChatRequest, never: bool) -> dict[str, object]:
    """The variables for a budget of tokens: none at all is an effort, too."""
    if request.budget is None:
        return {}
    name, tokens = request.budget
    by_number = {key: value for key, value in variables_of(template, "", tokens).items() if value == tokens}
    found = by_number or (variables_of(template, _NONE) if tokens == 0 else {})
    if not found and not (never and tokens == 0):
        raise RequestError("unsupported_parameter", f"{name}: the model's chat template has no such budget; "
                           "max_completion_tokens bounds the whole answer", param=name)
    return dict(found)
