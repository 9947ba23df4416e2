"""Fuzz target: any bytes as a body whose texts get stand-ins. With the texts in their places, it is the object that
Python's JSON reads; both are refused, or none."""

from __future__ import annotations

from typing import Any

from appliance.api import document
from appliance.api.problems import RequestError
from appliance.oblivious.contents import BodyReader, Contents
from tests.fuzz import wire_fuzz
from tests.support.oblivious import kernels

READER = BodyReader(kernels())


def put_back(value: Any, contents: Contents) -> Any:
    """A value with texts in the place of their stand-ins."""
    if isinstance(value, dict):
        return {name: put_back(item, contents) for name, item in value.items()}
    if isinstance(value, list):
        return [put_back(item, contents) for item in value]
    return contents.lift(value) if isinstance(value, str) else value


def _object(body: bytes) -> Any:
    try:
        return document.read(body)
    except RequestError:
        return None


def fuzz(data: bytes) -> None:
    """Read a body both ways."""
    read, wanted = READER.read(data), _object(data)
    if read is not None:
        found = _object(read[0])
        assert wanted == (None if found is None else put_back(found, read[1]))


def seeds() -> list[bytes]:
    """Bodies of all APIs, and escapes of all kinds."""
    more = [
        '{"prompt": "\\ud83d\\ude00\\u00e9\\n\\"\\\\ é中😀\\u2028"}',
        '{"messages": [{"content": [{"text": " a\\t"}]}], "system": "\\ue000"}',
        '{"prompt": ["a", "\\u001f b\\u0000"], "input": {"content": "c"}}']
    return [*wire_fuzz.seeds(), *(each.encode() for each in more)]
