"""The names of the API's parameters: a closed list, so that a log may say which one a refusal is
about.

A path such as `messages.3.content` becomes the longest name that the list has, `messages.content`.
Names that a client made up, as keys of `metadata` and unknown parameters, are in no list.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pydantic import BaseModel

from appliance.api import messages
from appliance.api.adapters.table import ADAPTERS

_OF_QUERIES = ("nonce", "challenge")


def known(path: str | None) -> str | None:
    """Return the name of the parameter that a refusal's `param` leads to; None where the list has
    none."""
    steps = [step for step in (path or "").split(".") if not step.isdecimal()]
    names = (".".join(steps[:count]) for count in range(len(steps), 0, -1))
    return next((name for name in names if name in NAMES), None)


def _names(kind: type[BaseModel], before: str = "") -> Iterator[str]:
    """Yield the fields of a type and, after a point, of the types within it."""
    for name, field in kind.model_fields.items():
        written = field.alias or name
        yield before + written
        for inner in _types(field.annotation):
            yield from _names(inner, f"{before}{written}.")


def _types(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _types(argument)


NAMES = frozenset({
    *(name for row in ADAPTERS for name in (*_names(row.body), *row.rows)), *_OF_QUERIES,
    *(f"messages.{name}" for name in messages.REFUSED)})
