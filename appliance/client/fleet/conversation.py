"""The conversation of a request: a digest that its later turns share, so that they find its prefix
in the cache of the appliance that read it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

TEXT = 1024  # characters of a prompt without roles that name it

_LISTS = ("messages", "input")
_BEFORE = ("model", "system", "instructions", "prompt_cache_key")


def key(method: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes | None:
    """The digest of what turns of one conversation have in common; None for any other request.

    That is the API key, the model, and all up to the first words of the user. It is computed here
    and leaves this machine in no form.
    """
    if method != "POST" or not body:
        return None
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict):
        return None
    begin = _begin(asked)
    if begin is None:
        return None
    whose = [value for name, value in headers if name.lower() in ("authorization", "x-api-key")]
    told = [whose, [asked.get(name) for name in _BEFORE], begin]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()


def _begin(asked: dict[str, Any]) -> Any:
    """The beginning of a conversation; None where nothing tells."""
    if isinstance(prompt := asked.get("prompt"), str):
        return prompt[:TEXT]
    for name in _LISTS:
        found = asked.get(name)
        if isinstance(found, str):
            return found[:TEXT]
        if isinstance(found, list) and found:
            return _to_first_user(found)
    return None


def _to_first_user(items: list[Any]) -> list[Any]:
    for number, each in enumerate(items, 1):
        if isinstance(each, dict) and each.get("role") == "user":
            return items[:number]
    return items[:1]
