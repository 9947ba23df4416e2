"""The kind of a file that was given in the place of another: for a refusal, never to accept
anything by it.

The kinds are in the room `mistakes`. Where that is not there, as in an image, no file has a kind,
and a refusal says what was expected alone.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance import optional

LOOKED_AT = 4096  # bytes that suffice


class FileKind(NamedTuple):
    """The kind of a file, and its purpose."""

    what: str
    use: str


def instead_of_model(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, where a model should be."""
    return _kind("instead_of_model", start)


def instead(start: bytes) -> str:
    """The words behind a refusal of a file that should be JSON: "; it is …" where its kind is
    known."""
    kind = _kind("instead_of_json", start)
    return "" if kind is None else f"; it is {kind.what}"


def _kind(question: str, start: bytes) -> FileKind | None:
    files = optional.find("mistakes", "files")
    kind: FileKind | None = None if files is None else getattr(files, question)(start)
    return kind
