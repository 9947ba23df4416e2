"""The API's own document, in OpenAPI 3.1, made from the types that read requests and write answers.

`make reference` writes it to `openapi.json`, which is served; this module does not ship. There is
no page about it, which would load scripts of others.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

import appliance
from appliance.api.adapter import Adapter
from appliance.api.adapters.table import ADAPTERS
from appliance.api.wishes.parameter import Endpoint, Extra
from appliance.service.answering.cards import ModelCard, ModelList, TokenizerCard
from appliance.service.counting.usage import UsageList
from appliance.service.loading.wire import Change, DeclaredModels, TenantListInForce

_REF = "#/components/schemas/"
Kind = Any  # a pydantic type
Names = dict[Any, str]  # a type -> the name of its schema
ABOUT = ("Requests are JSON objects. Null is the same as an absent member. A parameter that stands nowhere here, and "
         "a wish without effect, is ignored and named in the header `appliance-ignored`, or refused where the policy "
         "says so. Limits and bounds of values are the policy's.")


class Problem(BaseModel):
    """A refusal in OpenAI's shape."""

    class Error(BaseModel):
        """The code says what is wrong, and `param` where."""

        message: str
        type: str
        param: str | None
        code: str

    error: Error


class SignedList(BaseModel):
    """A signed list of tenants, as `appliance tenants` writes it. The appliance reads the file's
    own bytes: docs/formats/tenant-list.md."""

    format: str
    list: dict[str, Any]
    signature: str


@dataclass(frozen=True)
class _Plain:
    """An endpoint that answers with what is there."""

    path: str
    about: str
    answer: type[BaseModel] | None = None  # None: any object
    media: str = "application/json"
    key: bool = False  # whether it needs one
    query: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # the same, but they may be absent
    name: str | None = None  # of a parameter in the path
    method: str = "get"
    body: type[BaseModel] | None = None  # None: of another kind than JSON, or none


_PLAIN = (
    _Plain("/", "Whether the service is there."),
    _Plain("/health", "Whether requests are accepted, and how the boot went."),
    _Plain("/metrics", "Counters in Prometheus' text format.", media="text/plain", key=True),
    _Plain("/openapi.json", "This document."),
    _Plain("/tokenizer_info", "The tokenizer and the template of a model, where the policy allows it.",
           TokenizerCard, key=True, optional=("model",)),
    _Plain("/v1/admin/models", "The models of the policy, and which of them are loaded.", DeclaredModels, key=True),
    _Plain("/v1/admin/models", "Load a model, unload one, or put one in the place of another.", DeclaredModels,
           key=True, method="post", body=Change),
    _Plain("/v1/admin/tenants", "Put a newer list of tenants in force, which the policy's authority signed.",
           TenantListInForce, key=True, method="post", body=SignedList),
    _Plain("/v1/attestation", "Evidence for a nonce.", query=("nonce",)),
    _Plain("/v1/attestation/activation", "A TPM's answer to a challenge.", query=("challenge",)),
    _Plain("/v1/audit/checkpoint", "The audit log's newest checkpoint, a signed note.", media="text/plain", key=True),
    _Plain("/v1/audit/log", "The audit log as it is on the state disk, a record a line.", media="application/jsonl",
           key=True),
    _Plain("/v1/audit/timestamp", "The next request to the log's timestamp authority, for a relay.", key=True),
    _Plain("/v1/audit/timestamp/response", "The authority's response, from a relay.", key=True, method="post"),
    _Plain("/v1/audit/witnesses", "The next request to each witness of the log, for a relay.", key=True),
    _Plain("/v1/audit/witnesses/{witness}", "A witness's cosignature lines, from a relay.", key=True, name="witness",
           method="post"),
    _Plain("/v1/models", "The models that the key may ask.", ModelList, key=True),
    _Plain("/v1/models/{model}", "One of them.", ModelCard, key=True, name="model"),
    _Plain("/v1/usage", "Usage of the key, by day and model; of all keys, where it may read metrics.", UsageList,
           key=True, optional=("days",)))


@functools.cache
def document() -> dict[str, Any]:
    """The document."""
    bodies: set[Kind] = {row.body for row in ADAPTERS} | {each.body for each in _PLAIN if each.body}
    told: set[Kind] = {Problem, *(each.answer for each in _PLAIN if each.answer)}
    for row in ADAPTERS:
        told |= {row.answer, *row.events, *filter(None, [row.problem])}
    asked: list[tuple[Kind, JsonSchemaMode]] = [(kind, "validation") for kind in sorted(bodies, key=_qualified)]
    asked += [(kind, "serialization") for kind in sorted(told, key=_qualified)]
    found, definitions = models_json_schema(asked, ref_template=_REF + "{model}", schema_generator=_Generator)
    schemas = definitions["$defs"]
    names: Names = {kind: schema["$ref"].removeprefix(_REF) for (kind, _mode), schema in found.items()}
    for name, schema in schemas.items():
        if schema.get("additionalProperties") is False and name != names[Change]:
            del schema["additionalProperties"]  # others are wishes
    for row in ADAPTERS:
        _declare(schemas[names[row.body]]["properties"], row)
    paths = {row.path: {"post": _text(row, names)} for row in ADAPTERS}
    for each in _PLAIN:
        paths.setdefault(each.path, {})[each.method] = _plain(each, names)
    return {
        "openapi": "3.1.0", "info": {"title": "The appliance", "version": appliance.__version__, "description": ABOUT},
        "servers": [{"url": "/"}], "paths": dict(sorted(paths.items())),
        "components": {"schemas": dict(sorted(schemas.items())), "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}}}}


class _Generator(GenerateJsonSchema):
    """A serializer that leaves members out changes nothing of the others."""

    def ser_schema(self, schema: Any) -> Any:
        """None: the schema of what is serialized."""
        return None if schema["type"] == "function-wrap" else super().ser_schema(schema)


def _qualified(kind: Kind) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _declare(properties: dict[str, Any], row: Adapter) -> None:
    """Add the parameters that a type does not declare, since few of their values pass."""
    endpoint: Endpoint = "completions" if row.path == "/v1/completions" else "chat"
    for name, parameter in row.rows.items():
        if name not in properties and "." not in name:
            properties[name] = _row(parameter, parameter.values(endpoint))


def _row(parameter: Extra, values: tuple[Any, ...]) -> dict[str, Any]:
    if parameter.becomes is not None:
        return {"description": f"Another name of {parameter.becomes}."}
    if parameter.wish:
        return {"description": f"A wish: {parameter.why}."}
    hint = f" For another, {parameter.instead}." if parameter.instead else ""
    return {"enum": [*values, None], "description": f"Accepted with a value that changes nothing.{hint}"}


def _text(row: Adapter, names: Names) -> dict[str, Any]:
    """The operation of an endpoint for text."""
    content: dict[str, Any] = {"application/json": {"schema": _to(names[row.answer])}}
    if row.events:
        content["text/event-stream"] = {"schema": {"anyOf": [_to(names[kind]) for kind in row.events]}}
    return {**_named(row.path, row.about), "security": [{"bearer": []}, {"apiKey": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _to(names[row.body])}}},
            "responses": {"200": {"description": row.about, "content": content}, **_refusals(row, names)}}


def _plain(each: _Plain, names: Names) -> dict[str, Any]:
    schema = {"type": "string"} if each.media == "text/plain" else (
        {"type": "object"} if each.answer is None else _to(names[each.answer]))
    places = [("query", name) for name in each.query] + [("path", name) for name in filter(None, [each.name])]
    parameters = [{"name": name, "in": place, "required": True, "schema": {"type": "string"}} for place, name in places]
    parameters += [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
                   for name in each.optional]
    asked = {} if each.body is None else {"requestBody": {
        "required": True, "content": {"application/json": {"schema": _to(names[each.body])}}}}
    named = _named(each.path if each.body is None else f"{each.method}{each.path}", each.about)
    return {**named, **asked, "security": [{"bearer": []}, {"apiKey": []}] if each.key else [],
            **({"parameters": parameters} if parameters else {}),
            "responses": {"200": {"description": each.about, "content": {each.media: {"schema": schema}}},
                          **_refusals(None, names)}}


def _named(path: str, about: str) -> dict[str, Any]:
    return {"operationId": re.sub(r"\W+", "_", path).strip("_"), "summary": about}


def _refusals(row: Adapter | None, names: Names) -> dict[str, Any]:
    """The default answer, which is a refusal."""
    kind = Problem if row is None else row.problem or Problem
    return {"default": {"description": "A refusal.", "content": {"application/json": {"schema": _to(names[kind])}}}}


def _to(name: str) -> dict[str, str]:
    return {"$ref": _REF + name}


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
