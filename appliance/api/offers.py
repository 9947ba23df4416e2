"""The functions that an answer may call, and the choice among them.

Source of the format: the OpenAI API reference, "Chat": `tools`, `tool_choice` and
`parallel_tool_calls`, and their older form, `functions` and `function_call`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from appliance.api import findings
from appliance.api.messages import IGNORED, Wire, type_of
from appliance.api.problems import invalid
from appliance.api.wishes import features
from appliance.api.wishes.ignored import Ignored

MOST = 1024  # functions of one request
DEEPEST = 28  # levels of a schema: with what is around it, as deep as templates take values
LONGEST_NAME = 128  # characters of a function's name
NAME = r"^[a-zA-Z0-9_-]{1,128}$"
FunctionName = Annotated[str, Field(pattern=NAME)]
_MEANT = {  # values that ask for nothing where a request offers no functions
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "parallel_tool_calls": (True, False)}


def schema_text(value: Any) -> str:
    """Return a JSON Schema as the text that a request keeps: as objects it takes many times as
    much."""
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "not an object")
    if _too_deep(value, DEEPEST - 1):
        raise PydanticCustomError("value_error", f"a schema may be nested {DEEPEST} deep")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise PydanticCustomError("value_error", "numbers lie within 1.8e308 of 0") from None


def _too_deep(value: dict[str, Any] | list[Any], left: int) -> bool:
    return left < 0 or any(_too_deep(item, left - 1)
                           for item in (value.values() if isinstance(value, dict) else value)
                           if isinstance(item, dict | list))


def _parameters(value: Any) -> str:
    """Return the schema of a function's arguments, which are an object, as text."""
    text, kind = schema_text(value), value.get("type")
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else ["object"]
    if not any(isinstance(each, str) and each.lower() == "object" for each in kinds):
        raise PydanticCustomError("value_error", "the arguments of a function are an object, so the type is "
                                  "\"object\", with each argument in properties; found: another type")
    return text


Schema = Annotated[str, BeforeValidator(_parameters), WithJsonSchema({"type": "object"})]
"""The JSON Schema of a function's arguments, an object in the request, as text."""


class FunctionDefinition(Wire):
    """A function by name, with a JSON Schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool = False

    def as_json(self) -> str:
        """Return the function as JSON text, its parameters as an object in it."""
        texts = {"name": json.dumps(self.name), "description": json.dumps(self.description, ensure_ascii=False),
                 "parameters": self.parameters or "null", "strict": json.dumps(self.strict)}
        return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


class ChatTool(Wire):
    """One of `tools`: functions are the only kind that a model here can call."""

    type: Literal["function"]
    function: FunctionDefinition
    MARKS = IGNORED


class FunctionReference(Wire):
    """A function's name."""

    name: FunctionName


class NamedToolChoice(Wire):
    """A function, as `tool_choice` names it."""

    type: Literal["function"]
    function: FunctionReference


class AllowedFunctions(Wire):
    """Some of the functions, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=MOST)]


class FunctionChoice(Wire):
    """The choice of one function, or of some."""

    type: Literal["function", "allowed_tools"]
    function: FunctionReference | None = None
    allowed_tools: AllowedFunctions | None = None

    @model_validator(mode="after")
    def _is_one(self) -> FunctionChoice:
        other = "allowed_tools" if self.type == "function" else "function"
        if getattr(self, self.type) is None or getattr(self, other) is not None:
            raise PydanticCustomError("value_error", "allowed: {kind} alone", {"kind": self.type})
        return self


# Steps of pydantic's paths, which `findings` leaves out
_TEXT, _OBJECT, _BY_KIND = Tag("(text)"), Tag("(object)"), Discriminator(
    lambda value: "(text)" if isinstance(value, str) else "(object)")
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], _TEXT] | Annotated[FunctionChoice, _OBJECT], _BY_KIND]
FunctionCallChoice = Annotated[
    Annotated[Literal["none", "auto"], _TEXT] | Annotated[FunctionReference, _OBJECT], _BY_KIND]


@dataclass(frozen=True)
class Offer:
    """The functions that an answer may call; none: it may call nothing."""

    functions: tuple[FunctionDefinition, ...] = ()
    param: str = "tools"  # where they stand in the request
    places: tuple[int, ...] = ()  # of each in that list
    required: bool = False  # an answer is a call, or several
    parallel: bool = True  # there may be several calls
    older: bool = False  # the request has the older form, and so has the answer
    muted: tuple[str, ...] = ()  # functions that no answer is to call, though the request has them

    def path(self, index: int) -> str:
        """Return where the parameters of a function stand in the request."""
        return f"{self.param}.{self.places[index]}{'' if self.older else '.function'}.parameters"


HOSTED = "this service calls functions only, and hosts no tools"


def without_hosted(document: dict[str, Any], known: Collection[str], ignored: Ignored) -> list[int]:
    """Take tools of other types than those `known` out of a request, and note them. Returns the
    places of the others."""
    tools = document.get("tools")
    if not isinstance(tools, list) or not tools:
        return []
    kept = [place for place, tool in enumerate(tools) if type_of(tool) in (None, *known)]
    for place in sorted(set(range(len(tools))) - set(kept)):
        ignored.note(("tools", place), HOSTED)
    document["tools"] = [tools[place] for place in kept]
    return kept


def settle(document: dict[str, Any]) -> None:
    """Take out of a chat's request what asks for nothing: empty lists, and a choice among none."""
    for name in ("tools", "functions"):
        if document.get(name) in ([], None):
            document.pop(name, None)
    if "tools" not in document and "functions" not in document:
        for name, values in _MEANT.items():
            value = document.get(name)
            if isinstance(value, str | bool) and value in values:
                del document[name]


def offer(tools: Sequence[ChatTool] | None, choice: ToolChoice | None, parallel: bool | None,
          functions: Sequence[FunctionDefinition] | None, call: FunctionCallChoice | None) -> Offer:
    """Return the offer of a request. RequestError if it contradicts itself."""
    if functions is not None or call is not None:
        for name, value in (("tools", tools), ("tool_choice", choice), ("parallel_tool_calls", parallel)):
            if value is not None:
                older = "functions" if functions is not None else "function_call"
                raise findings.refusal_of(features.exclusion(features.NEWER_FORM, older), name=name)
        wanted = None if call is None or isinstance(call, str) else [call.name]
        return _offer_of("functions", functions or (), "function_call", wanted, off=call == "none",
                       required=wanted is not None, parallel=False)
    names, mode, parallel = None, choice, parallel is not False
    if isinstance(choice, FunctionChoice) and choice.function is not None:
        names, mode, parallel = [choice.function.name], "required", False  # a function that is named is called once
    elif isinstance(choice, FunctionChoice) and choice.allowed_tools is not None:
        names, mode = [each.function.name for each in choice.allowed_tools.tools], choice.allowed_tools.mode
    return _offer_of("tools", [tool.function for tool in tools or ()], "tool_choice", names, off=mode == "none",
                   required=mode == "required", parallel=parallel)


def _offer_of(param: str, functions: Sequence[FunctionDefinition], by: str, wanted: Sequence[str] | None, *, off: bool,
            required: bool, parallel: bool) -> Offer:
    """Return an offer of the functions that are wanted (None: all), by what a choice says."""
    names = [function.name for function in functions]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None) if (
        len(set(names)) < len(names)) else None
    if twice is not None:
        raise invalid(param, f"the function {twice} stands twice")
    if not functions:
        if required:
            raise invalid(by, f"a function must be called, and {param} has none")
        return Offer(param=param, older=param == "functions")
    for name in wanted or ():
        if name not in names:
            raise invalid(by, f"{param} has no function of this name; it has: {_some(names)}")
    if off:
        return Offer(param=param, older=param == "functions", muted=tuple(names))
    places = tuple(place for place, name in enumerate(names) if wanted is None or name in wanted)
    return Offer(tuple(functions[place] for place in places), param, places, required, parallel, param == "functions")


def called_names(calls: Iterable[str]) -> Iterator[str]:
    """Yield the names of the functions that earlier turns called, by the calls of each as JSON
    text."""
    for text in calls:
        yield from (call["name"] for call in (json.loads(text) if text != "[]" else ()))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f", and {len(names) - 8} more" if len(names) > 8 else "")
