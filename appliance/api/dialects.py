"""Parameters that other servers have: what becomes of each name in a chat or a text completion.

`settle` applies the table of names (`api/wishes`) to a request. A value that says what happens
anyway asks for nothing, and null always does. A row may name the parameter that does the same here.
A wish is accepted, and noted. Every other value is refused by name, with the allowed values and
what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from appliance.api.problems import RequestError, unsupported
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.parameter import Endpoint, same
from appliance.api.wishes.table import EFFORTS, ROWS

# Names of a model's thoughts: of DeepSeek and llama.cpp; of OpenRouter and vLLM; of Ollama.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")

# Values of declared parameters that say what happens where they are absent.
UNSET: dict[str, tuple[Any, ...]] = {
    "max_tokens": (-1,), "max_completion_tokens": (-1,),  # no bound but the policy's
    "thinking_token_budget": (-1,), "reasoning_budget": (-1,), "reasoning_format": ("auto", "deepseek"),
    "stop": ("", []), "samplers": ([], ""), "n": (1,),
    "logit_bias": ([],),  # llama.cpp writes the bias as a list of pairs
    "response_format": ({"type": "text"},), "grammar": ("",), "format": ("",), "ebnf": ("",), "regex": ("",),
}

# Where the value that is absent depends on the endpoint.
UNSET_BY_ENDPOINT: dict[Endpoint, dict[str, tuple[Any, ...]]] = {
    "chat": {},
    "completions": {"suffix": ("",), "logprobs": (False,), "top_logprobs": (0,), "chat_template_kwargs": ({},)},
}


# Declared parameters that ask for one thing, each in its own form
TOGETHER = (
    ("thinking_token_budget", "reasoning_budget"), ("reasoning_effort", "enable_thinking", "think"),
    ("tools", "functions"), ("tool_choice", "function_call"),
    ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
     "grammar", "json_schema", "regex", "ebnf", "format"))


def names_of(name: str) -> Iterator[str]:
    """Yield every name of a parameter: a policy that drops one of them drops all."""
    own = ROWS[name].becomes if name in ROWS else None
    target = own or name
    yield from next((names for names in TOGETHER if target in names), (target,))
    yield from (row.name for row in ROWS.values() if row.becomes == target)


def settle(document: dict[str, Any], endpoint: Endpoint, ignored: Ignored) -> list[RequestError]:
    """Take out of a request what changes nothing, and give the rest the names of this service.
    Returns the refusals of demands that this service does not meet, in the table's order."""
    refused: list[RequestError] = []
    if endpoint == "chat":
        _think(document, ignored)
    for row in [ROWS[name] for name in ROWS if name in document]:
        if row.chats_have if endpoint == "chat" else row.texts_have:
            continue
        value = document.pop(row.name)
        if row.becomes is not None:
            _rename(document, row.name, row.becomes, value)
        elif not row.allows(value, endpoint) and row.wish:
            ignored.note((row.name,), row.words(endpoint), idle=row.idle)
        elif not row.allows(value, endpoint):
            refused.append(unsupported(row.name, row.words(endpoint)))
    for name, values in (*UNSET.items(), *UNSET_BY_ENDPOINT[endpoint].items()):
        if name in document and any(same(document[name], each) for each in values):
            del document[name]
    if "best_of" in document and same(document["best_of"], document.get("n", 1)):
        del document["best_of"]
    if document.get("add_generation_prompt") is True and document.get("continue_final_message") in (None, False):
        del document["add_generation_prompt"]
    return refused


_SWITCHES = ("enable_thinking", "think")  # of other servers: whether a model thinks, and how much


def effort_name(document: dict[str, Any]) -> str:
    """Return the name by which a chat says how much a model thinks."""
    return next((name for name in _SWITCHES if document.get(name) is not None), "reasoning_effort") if (
        document.get("reasoning_effort") is None) else "reasoning_effort"


def _think(document: dict[str, Any], ignored: Ignored) -> None:
    """Settle the effort, by whichever of its names. An unknown effort is a wish without effect."""
    efforts = {name: document.pop(name, None) for name in ("reasoning_effort", *_SWITCHES)}
    for name, value in efforts.items():
        if value is None:
            continue
        effort = {True: "medium", False: "none"}.get(value, "") if isinstance(value, bool) else value
        if effort in EFFORTS and isinstance(value, str | bool) and "reasoning_effort" not in document:
            document["reasoning_effort"] = effort
        elif effort != document.get("reasoning_effort"):
            ignored.note((name,), ROWS[name].words())


def _rename(document: dict[str, Any], name: str, target: str, value: Any) -> None:
    if value is None:
        return
    if document.get(target) is not None and not same(document[target], value):
        raise RequestError("invalid_value", f"{name} and {target} differ; here they are one parameter", param=name)
    document[target] = value


def spellings(paths: Iterable[str]) -> set[str]:
    """Return the paths of fields that a policy drops, by every name of the field."""
    return {before + dot + each for path in paths for before, dot, name in [path.rpartition(".")]
            for each in (names_of(name) if not before else THOUGHTS if _is_thought(before, name) else [name])}


def _is_thought(before: str, name: str) -> bool:
    return before == "messages" and name in THOUGHTS
