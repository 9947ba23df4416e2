"""The structure that an answer must have, by the names of several servers.

    response_format      OpenAI: text, json_object, json_schema; llama.cpp: a `schema` beside json_object
    structured_outputs   vLLM: json, regex, choice, grammar, json_object
    guided_*             vLLM before: guided_json, guided_regex, guided_choice, guided_grammar
    grammar, json_schema llama.cpp: GBNF, a JSON Schema
    regex, ebnf          SGLang: a regular expression, GBNF
    format               Ollama: "json", or a JSON Schema

A request has one of them at most, or the same one by several names. Each becomes a `Spec` of the
engine, with its place in the request, so that a refusal can say where the fault is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from appliance.api import document
from appliance.api.messages import Wire
from appliance.api.offers import schema_text
from appliance.api.problems import RequestError, invalid, missing
from appliance.constraint.spec import Gbnf, JsonObject, JsonSchema, Lark, RegexText, Spec, TextList

MOST_CHOICES = 4096


def _schema(value: Any) -> str:
    """Return a schema as text, also where it is a boolean, or sent as text."""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        try:
            value = document.read(value.encode())
        except RequestError:
            raise PydanticCustomError("value_error", "the text is not a JSON object with each key once") from None
    return schema_text(value)


def _format(value: Any) -> str:
    return _OBJECT if value == "json" else schema_text(value)


_OBJECT = "{}"  # of `format`: any object
Schema = Annotated[str, BeforeValidator(_schema), WithJsonSchema({"type": ["object", "boolean"]})]


NonEmptyText = Annotated[str, Field(min_length=1)]
ChoiceTexts = Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)]


class NamedSchema(Wire):
    """`response_format.json_schema`. A schema is enforced to the letter, whatever `strict` says."""

    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _fits(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise missing("response_format.json_schema")
        if self.json_schema is not None and (self.type != "json_schema" or self.schema_ is not None):
            raise invalid("response_format.json_schema", "allowed with the type json_schema alone")
        if self.schema_ is not None and self.type == "text":
            raise invalid("response_format.schema", "not allowed with the type text")
        return self


class StructuredOutputs(Wire):
    """`structured_outputs` of vLLM."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: NonEmptyText | None = None
    json_object: bool = False
    disable_fallback: bool = False
    disable_any_whitespace: Literal[False] = False
    disable_additional_properties: Literal[False] = False

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        forms = [each for each in (self.json_, self.regex, self.choice, self.grammar) if each is not None]
        if len(forms) + self.json_object != 1:
            raise PydanticCustomError("value_error", "allowed: one of json, regex, choice, grammar and json_object")
        return self


class StructureParameters(Wire):
    """The parameters of a request that give an answer its structure."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: NonEmptyText | None = None
    grammar: NonEmptyText | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: NonEmptyText | None = None
    format: Annotated[str, BeforeValidator(_format), WithJsonSchema({"type": ["object", "string"]})] | None = None

    @property
    def structure_names(self) -> list[str]:
        """The parameters that ask for a structure, whether or not it is a good one."""
        return [name for name in NAMES if getattr(self, name) is not None and not _is_text(getattr(self, name))]


NAMES = tuple(StructureParameters.model_fields)


@dataclass(frozen=True)
class Structure:
    """A structure that is asked for, and the path of that in the request."""

    param: str
    spec: Spec


def structure_of(request: StructureParameters) -> Structure | None:
    """Return the structure that a request asks for, by one name or by several with equal
    values. Raises RequestError where it asks for two."""
    names = request.structure_names
    structures = [next(_structures(name, getattr(request, name))) for name in names]
    for name, other in zip(names[1:], structures[1:], strict=True):
        if not _are_equal(other.spec, structures[0].spec):
            raise invalid(name, f"an answer has one structure, which {names[0]} gives already")
    return structures[0] if structures else None


def _are_equal(one: Spec, other: Spec) -> bool:
    """Return whether two values ask for the same. In Python `True` equals 1, in a schema it does
    not."""
    if isinstance(one, JsonSchema) and isinstance(other, JsonSchema):
        return json.dumps(one.schema) == json.dumps(other.schema)
    return one == other


def _is_text(value: Any) -> bool:
    return isinstance(value, ResponseFormat) and value.type == "text"


def _structures(name: str, value: Any) -> Iterator[Structure]:
    """Yield the structure that one parameter asks for."""
    match value:
        case ResponseFormat():
            named = value.json_schema
            schema = value.schema_ if named is None else named.schema_
            path = f"{name}.schema" if named is None else f"{name}.json_schema.schema"
            yield Structure(name, JsonObject()) if schema is None else Structure(path, _spec("json", schema))
        case StructuredOutputs():
            for key in ("json", "regex", "choice", "grammar"):
                inner = getattr(value, "json_" if key == "json" else key)
                if inner is not None:
                    yield Structure(f"{name}.{key}", _spec(key, inner))
            if value.json_object:
                yield Structure(name, JsonObject())
        case _:
            yield Structure(name, _spec(_KINDS.get(name, "json"), value))


_KINDS = {"guided_regex": "regex", "regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
          "grammar": "gbnf", "ebnf": "gbnf", "format": "format"}


def _spec(kind: str, value: Any) -> Spec:
    """Return the engine's form of a value."""
    match kind:
        case "format" if value == _OBJECT:
            return JsonObject()
        case "json" | "format":
            return JsonSchema(json.loads(value))
        case "regex":
            return RegexText(value)
        case "choice":
            return TextList(tuple(value))
        case "grammar" if "::=" not in value:
            return Lark(value)
        case _:
            return Gbnf(value)
