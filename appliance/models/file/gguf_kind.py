"""GGUF files beside a model that answers by itself: a part of one, an addition to one, or for other
work.

The container is the same for all. A file that calls itself something other than a model is refused
here. The room `mistakes` has the names of such files, and the kinds that architecture and tensors
show. Files of those kinds are refused without it as well; it says why.
"""

from __future__ import annotations

from appliance import optional
from appliance.codec.filekind import FileKind
from appliance.errors import UnsupportedError
from appliance.models.file.metadata import Metadata, optional_int


def check(metadata: Metadata, tensors: int | None = None) -> None:
    """Raises UnsupportedError for a file that is not one whole model by its metadata and its number
    of tensors (None: not known yet)."""
    part = _split(metadata)
    if part is not None:
        raise UnsupportedError(f"the file is {part} of a model; supported: all of them, side by side, as "
                               "NAME-00001-of-00003.gguf and so on", hint="give each its name back and name the first; "
                               "or join them with: llama-gguf-split --merge FIRST_PART OUT.gguf")
    kind = _kind(metadata, tensors)
    if kind is not None:
        raise UnsupportedError(f"the file is {kind.what}; supported: a whole language model", hint=kind.use)


def _kind(metadata: Metadata, tensors: int | None) -> FileKind | None:
    """Return the kind of a file that is not a language model, or None if it may be one."""
    kinds = optional.find("mistakes", "kinds")
    kind: FileKind | None = None if kinds is None else kinds.of(metadata, tensors)
    declared = metadata.get("general.type")
    name = declared.strip().lower() if isinstance(declared, str) else ""
    if kind is None and name not in ("", "model"):
        return FileKind(f"of the type {name[:40]!r}, not a model", "use the file of a model")
    return kind


def _split(metadata: Metadata) -> str | None:
    """Which part of a split model a file is; None for a whole one."""
    count, number = optional_int(metadata, "split.count", 1), optional_int(metadata, "split.no", -1)
    if count <= 1:
        return None
    return f"part {number + 1} of the {count} parts" if 0 <= number < count else f"one of {count} parts"
