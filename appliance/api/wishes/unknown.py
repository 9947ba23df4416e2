"""The members of a request that its type does not declare, wherever they stand.

A request is read strictly, so that nothing in it is silently without effect. Members that no type
declares are found before that, by the types themselves, and taken out.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Tag

from appliance.api.wishes.ignored import MOST, Ignored, Path
from appliance.api.wishes.parameter import Extra

Found = tuple[Path, dict[str, Any]]
"""A member's path, and the object that has it."""
_Step = Callable[[Any, Path], Iterator[Found]]


def take(value: Any, kind: type[BaseModel], rows: Mapping[str, Extra], ignored: Ignored) -> list[Found]:
    """Take out of a request, which is altered, what its type does not declare and the table does
    not demand. Returns the demands."""
    refused: list[Found] = []
    for path, owner in _of_model(kind, value, ()):
        name, item = path[-1], owner[str(path[-1])]
        row = rows.get(".".join(step for step in path if isinstance(step, str)))
        if row is not None and not row.wish and not row.allows(item):
            refused += [(path, owner)] if len(refused) < MOST else []
            continue
        if item is not None and (row is None or not row.allows(item)):
            ignored.note(path, None if row is None else row.words(), idle=row is not None and row.idle)
        del owner[str(name)]
    return refused


def _of_model(kind: type[BaseModel], value: Any, path: Path) -> Iterator[Found]:
    if not isinstance(value, dict):
        return
    members, beside = _members(kind), getattr(kind, "beside", None)
    known = beside(value) if beside is not None else ()
    for name, item in list(value.items()):  # its reader takes some out
        step = members.get(name, _unknown)
        if step is _unknown:
            if name not in known:
                yield (*path, name), value
        elif step is not None:
            yield from step(item, (*path, name))


def _unknown(_value: Any, _path: Path) -> Iterator[Found]:
    return iter(())


@functools.cache
def _members(kind: type[BaseModel]) -> dict[str, _Step | None]:
    """Return the members that a type declares, each with the step into its value; None where no
    type is in there."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.alias or name: _into(hints[name]) for name, field in kind.model_fields.items()}


def _into(annotation: Any) -> _Step | None:
    """Return the step into a value of a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return functools.partial(_of_model, annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        tag = next((each.discriminator for each in arguments[1:] if isinstance(each, Discriminator)), None)
        return _into(arguments[0]) if not callable(tag) else _tagged(arguments[0], tag)
    if origin is list:
        step, item = _into(arguments[0]), arguments[0]
        plain = _plain(item) if isinstance(item, type) and issubclass(item, BaseModel) else frozenset[str]()
        return None if step is None else functools.partial(_each, step, plain)
    if origin in (typing.Union, types.UnionType):
        steps = [step for step in map(_into, arguments) if step is not None]
        return functools.partial(_any, steps) if steps else None
    return None


def _plain(kind: type[BaseModel]) -> frozenset[str]:
    """Return the members of a type in which there is no type."""
    return frozenset(name for name, step in _members(kind).items() if step is None)


def _each(step: _Step, plain: frozenset[str], value: Any, path: Path) -> Iterator[Found]:
    """Step into each item of a list. Skip items with only `plain` members: there may be many."""
    for place, item in enumerate(value if isinstance(value, list) else ()):
        if not (isinstance(item, dict) and item.keys() <= plain):
            yield from step(item, (*path, place))


def _any(steps: list[_Step], value: Any, path: Path) -> Iterator[Found]:
    for step in steps:
        yield from step(value, path)


def _tagged(union: Any, tag: Callable[[Any], Any]) -> _Step:
    """Return the step into a value whose type another member names."""
    branches = {next(each.tag for each in typing.get_args(branch) if isinstance(each, Tag)): _into(branch)
                for branch in typing.get_args(union)}

    def step(value: Any, path: Path) -> Iterator[Found]:
        inner = branches.get(tag(value))
        if inner is not None:
            yield from inner(value, path)

    return step
