"""The data files of this package: read whole, and named when they are not what was installed."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.errors import DamagedError

ROOT = Path(__file__).parent
_HEX = re.compile(r"[0-9a-f]{64}")


def digests(found: Any) -> bool:
    """Whether it is a table of SHA-256 in hex by name."""
    return isinstance(found, dict) and bool(found) and all(
        isinstance(value, str) and _HEX.fullmatch(value) for value in found.values())


def entries(found: Any) -> bool:
    """Whether it is a table of objects by name."""
    return isinstance(found, dict) and bool(found) and all(isinstance(value, dict) for value in found.values())


def content(place: str, expected: str) -> bytes:
    """The bytes of a file of this package, by its path in it. Raises DamagedError where it cannot
    be read."""
    path = ROOT / place
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, expected, error.strerror or str(error)) from None


def document(place: str, expected: str, fits: Callable[[Any], bool]) -> Any:
    """A JSON file of this package, by its path in it. DamagedError where it is absent, cut, or not
    what `fits` takes, which `expected` describes."""
    path, data = ROOT / place, content(place, expected)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        said = f"not JSON in {len(data)} bytes ({error})" if data else "an empty file"
        raise damaged(path, expected, said) from None
    if not fits(found):
        raise damaged(path, expected, f"other JSON in {len(data)} bytes")
    return found


def damaged(path: Path, expected: str, found: str) -> DamagedError:
    """The message about a file of the installation."""
    return DamagedError(f"{path} is damaged: expected {expected}, found {found}",
                        hint="install the appliance again; in a checkout: git restore the file")


def broken(error: BaseException) -> DamagedError | None:
    """The message of an import's exception about a source file of this package, if it is about one.
    """
    name = error.filename if isinstance(error, SyntaxError) else error.path if isinstance(error, ImportError) else None
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(f"{ROOT.name}."):
        name = str(ROOT.parent.joinpath(*(error.name or "").split(".")).with_suffix(".py"))
    if name is None and isinstance(error, SyntaxError):  # of zero bytes, Python names no file
        frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        return damaged(Path(frames[-1]), "a Python source in each file that it imports", str(error)) if frames else None
    if name is None or not Path(name).is_relative_to(ROOT):
        return None
    return damaged(Path(name), "a Python source", str(error))
