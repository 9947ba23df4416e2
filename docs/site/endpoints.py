"""Write the reference of endpoints again: `make reference`, or `python docs/site/endpoints.py`.

`docs/reference/endpoints.md` is a page about the document that the service serves,
`docs/reference/parameters.md` the table of names, and `docs/reference/features.md` the table of
features that do not go together.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.api.wishes.features import EXCLUSIONS, Exclusion
from appliance.api.wishes.other import MESSAGES, RESPONSES, TOKENS
from appliance.api.wishes.parameter import Extra
from appliance.api.wishes.table import ROWS
from appliance.service.openapi import document

FOLDER = Path(__file__).parents[1] / "reference"
HEAD = """# Endpoints

`make reference` writes this page from the [OpenAPI document](openapi.json), which a running service has at
`/openapi.json`, and which is made from the types that read requests and write answers. [The API](api.md) says what
parameters mean. Null is the same as an absent parameter. A parameter that stands nowhere here is
a [wish](parameters.md): ignored, and named in the answer.
"""
NAMES = """# Wishes and demands

`make reference` writes this page from the table in `appliance/api/wishes`, which requests are read by.

A *demand* changes what the answer must be. It is met, or the request is refused with status 400. A *wish* says how the
answer might be made. It is accepted, has no effect here, and is named in the header `appliance-ignored` of the answer.
So is a name that this service does not know, wherever it stands. Parameters that [the API](api.md) describes have an
effect and stand here only for values without one. Null, and the values in the second column, ask for nothing: they pass
and are not named.
"""
FEATURES = """# Which features go together

`make reference` writes this page from the table in `appliance/api/wishes/features.py`, from which the refusals are
made. All features of a request go together but for these. A request with two that do not is refused with status 400
and the name of the feature in the first column. A test tries every pair.

| feature | does not go together with | because |
|---|---|---|
"""
TITLES = (("Chats and text completions", ROWS), ("The Responses API", RESPONSES), ("The Messages API", MESSAGES),
          ("Tokens", TOKENS))



def page() -> str:
    """The page, in Markdown."""
    described = document()
    parts = [HEAD]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts.append(f"## `{method.upper()} {path}`\n\n{operation['summary']}\n")
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                parts.append(_table(described, _resolved(described, schema)))
            content = operation["responses"]["200"]["content"]
            parts.append("Answers with " + ", or ".join(
                f"{_words(described, each['schema'])} (`{media}`)" for media, each in content.items()) + ".\n")
    return "\n".join(parts)


def names() -> str:
    """The page of the table of names, in Markdown."""
    parts = [NAMES]
    for title, rows in TITLES:
        parts.append(f"## {title}\n\n| name | asks for nothing | it is | because |\n|---|---|---|---|")
        parts[-1] += "".join(f"\n| {_name(row)} |" for row in rows.values()) + "\n"
    return "\n".join(parts)


def features() -> str:
    """The page of features that do not go together, in Markdown; equal reasons make one row."""
    groups = dict[tuple[tuple[str, ...], str], list[Exclusion]]()
    for row in EXCLUSIONS:
        groups.setdefault((row.others, row.why), []).append(row)
    lines = [f"| {_features(row.feature for row in rows)} | {_features(others)} | {why} |"
             for (others, why), rows in groups.items()]
    return FEATURES + "\n".join(lines) + "\n"


def _features(names: Iterable[str]) -> str:
    """Names of features: code where they are names of parameters."""
    return ", ".join(name if " " in name else f"`{name}`" for name in names)


def _name(row: Extra) -> str:
    """The cells of a row of the table of names."""
    if row.becomes is not None:
        return f"`{row.name}` | | another name | {row.why}"
    values = [f"`{json.dumps(value)}`" for value in row.values("completions")]
    values += [f"`{json.dumps(value)}` (chats)" for value in row.chat or ()]
    effect = ", ".join(f"`{json.dumps(value)}`" for value in row.taken)
    why = row.why + (f"; with an effect: {effect}" if effect else "") + (f". {row.instead}" if row.instead else "")
    return f"`{row.name}` | {', '.join(values)} | {'a wish' if row.wish else 'a demand'} | {why}"


def _resolved(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema["$ref"].rpartition("/")[2]
    found: dict[str, Any] = described["components"]["schemas"][name]
    return found


def _table(described: dict[str, Any], schema: dict[str, Any]) -> str:
    """A row for each declared parameter, and the names of others, whose values change nothing."""
    rows, neutral = ["| parameter | value |", "|---|---|"], []
    for name, each in schema["properties"].items():
        if "description" in each and ("enum" in each or len(each) == 1):
            neutral.append(name)
        else:
            rows.append(f"| `{name}`{' (required)' if name in schema.get('required', ()) else ''} | "
                        f"{_words(described, each)} |")
    if neutral:
        names = textwrap.fill(" ".join(neutral), 100, break_on_hyphens=False)
        rows += ["", "These are taken with values that change nothing, or as other names:", "", "```text", names, "```"]
    return "\n".join(rows) + "\n"


def _words(described: dict[str, Any], schema: dict[str, Any]) -> str:
    """A schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"`{name}`"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_words(described, each) for each in schema[key] if each != {"type": "null"})
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"a list of {_words(described, schema.get('items', {}))}"
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    bounds = [f"{word} {schema[key]}" for key, word in (
        ("minimum", "from"), ("maximum", "to"), ("exclusiveMaximum", "below"), ("maxLength", "length to"))
        if key in schema]
    return " ".join([words, *bounds])


def written() -> dict[str, str]:
    """The files, by name."""
    return {"endpoints.md": page(), "parameters.md": names(), "features.md": features()}


if __name__ == "__main__":
    for name, text in written().items():
        (FOLDER / name).write_text(text, "utf-8")
