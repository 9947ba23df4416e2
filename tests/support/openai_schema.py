"""OpenAI's published description of its API, as the judge of our answers."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.require import absent

sys.path.insert(0, str(Path(__file__).parent))
from fetch_openai_schema import TARGET

ANSWERS = {
    "chat.completion": "CreateChatCompletionResponse", "chat.completion.chunk": "CreateChatCompletionStreamResponse",
    "text_completion": "CreateCompletionResponse", "response": "Response",
    "list": "ListModelsResponse", "model": "Model"}


@cache
def components() -> Any:
    """The schemas of the document."""
    if not TARGET.is_file():
        absent(f"OpenAI's schema is not at {TARGET}: make vocabularies")
    document = yaml.load(TARGET.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return _with_null(document["components"])


def _with_null(value: Any) -> Any:
    """`nullable: true`, which the document still has from OpenAPI 3.0, as JSON Schema says it."""
    if isinstance(value, list):
        return [_with_null(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {name: _with_null(item) for name, item in value.items() if name != "nullable" or item is not True}
    return schema if value.get("nullable") is not True else {"anyOf": [schema, {"type": "null"}]}


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components()})


def check(answer: dict[str, Any], *, event: bool = False) -> dict[str, Any]:
    """An answer, an event or an error that the schema accepts; AssertionError names what it does not. For an `event`
    of a text completion the document has no schema: OpenAI sends the whole answer's, with null for its reason."""
    judged = answer
    if event and answer.get("object") == "text_completion":
        judged = {**answer, "choices": [{**each, "finish_reason": each["finish_reason"] or "stop"}
                                        for each in answer["choices"]]}
    check_as("ErrorResponse" if answer.get("error") else ANSWERS[answer["object"]], judged)
    return answer


def check_as(name: str, judged: dict[str, Any]) -> None:
    """AssertionError names what a schema of the document does not accept."""
    faults = [f"{'.'.join(map(str, each.absolute_path))}: {each.message[:300]}"
              for each in _validator(name).iter_errors(judged)]
    if faults:
        raise AssertionError("; ".join(faults))
