"""Every parameter that OpenAI and Anthropic publish, and that no table of ours names: none makes a request fail, and
each is named to the caller. A demand that is not met is refused by its path."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from appliance.api.adapters import parameters
from appliance.api.adapters.table import ADAPTERS
from appliance.api.problems import RequestError
from appliance.api.wishes.ignored import Ignored, Path
from tests.support import openai_schema
from tests.support.published import Published

USER = [{"role": "user", "content": "x"}]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": USER}, "/v1/completions": {"model": "m", "prompt": "x"},
    "/v1/responses": {"model": "m", "input": "x"}, "/v1/messages": {"model": "m", "messages": USER, "max_tokens": 9},
    "/v1/messages/count_tokens": {"model": "m", "messages": USER}}
FACTS = {"caller", "citations", "phase", "refusal", "status"}  # of an earlier answer: no wishes
TAKEN = ("input.action", "messages.content.citations", "messages.function_call", "tools.input_schema")  # as they are
OPENAI = {"/v1/chat/completions": "CreateChatCompletionRequest", "/v1/completions": "CreateCompletionRequest",
          "/v1/responses": "CreateResponse"}


def _outcome(path: str, body: dict[str, Any]) -> tuple[RequestError | None, list[Path]]:
    """The refusal of a body, and what of it has no effect."""
    row, ignored = next(row for row in ADAPTERS if row.path == path), Ignored()
    try:
        row.read(json.dumps(body).encode(), (), ignored)
    except RequestError as error:
        return error, ignored.paths
    return None, ignored.paths


def _generic(path: Path) -> str:
    return ".".join(step for step in path if isinstance(step, str))


def _judge(path: str, published: Published, schema: dict[str, Any]) -> Iterator[str]:
    """What is wrong, and how many names were tried: as the last one, a number."""
    row, tried = next(row for row in ADAPTERS if row.path == path), set[str]()
    for each in published.variants(schema):
        before = {**BASE[path], **{name: item for name, item in each.without.items() if name == each.path[0]}}
        after = {**before, each.path[0]: each.value[each.path[0]]}
        if after[each.path[0]] is None or after == before or _outcome(path, before)[0] is not None:
            continue
        error, ignored = _outcome(path, after)
        name = _generic(each.path)
        known = parameters.known(name) == name or name.startswith(TAKEN) or each.path[-1] in FACTS
        above = (_generic(each.path[:count]) for count in range(1, len(each.path) + 1))
        demand = any(step in row.rows and not row.rows[step].wish for step in above)
        if error is not None and not known and not demand:
            yield f"{name}: refused: {error}"
        elif error is not None and not (error.param or "").startswith(str(each.path[0])) and each.path[0] in str(error):
            yield f"{name}: refused elsewhere: {error.param}"
        elif error is None and not known and each.path not in ignored and each.path[:-1] not in ignored and not any(
                each.path[:count] in ignored for count in range(1, len(each.path))):
            yield f"{name}: not named: {ignored}"
        tried.add(name)
    yield str(len(tried))


@pytest.mark.parametrize("path", OPENAI)
def test_what_openai_publishes(path: str) -> None:
    """Its own description of the API, to four levels."""
    components = openai_schema.components()
    published = Published({"components": components})
    *wrong, tried = _judge(path, published, {"$ref": f"#/components/schemas/{OPENAI[path]}"})
    assert [] == wrong
    assert int(tried) > 12


@functools.cache
def _anthropic(name: str) -> dict[str, Any]:
    from anthropic import types
    from anthropic.types import beta
    kind = {"/v1/messages": types.message_create_params.MessageCreateParamsNonStreaming,
            "beta": beta.message_create_params.MessageCreateParamsNonStreaming,
            "/v1/messages/count_tokens": types.message_count_tokens_params.MessageCountTokensParams}[name]
    return TypeAdapter(kind).json_schema()


@pytest.mark.parametrize("name", ["/v1/messages", "beta", "/v1/messages/count_tokens"])
def test_what_anthropic_publishes(name: str) -> None:
    """The types of its client, to four levels; those of its betas, too."""
    schema = _anthropic(name)
    *wrong, tried = _judge("/v1/messages" if name == "beta" else name, Published(schema), schema)
    assert [] == wrong
    assert int(tried) > 25
