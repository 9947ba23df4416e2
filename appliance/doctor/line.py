"""A line of an examination, and the tasks that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "no", "note"]
VERIFY, SERVE, BUILD, BOOT = "check and verify", "serve here", "build an image", "boot an image"
TASKS = (VERIFY, SERVE, BUILD, BOOT)


@dataclass(frozen=True, slots=True)
class Line:
    """A thing that was looked at. Of "no" lines, those with tasks stop these tasks; `packages`:
    Debian's, which bring it."""

    area: str
    name: str
    state: State
    found: str
    fix: str = ""
    tasks: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
