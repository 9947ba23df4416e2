"""A measure of hardening: taken, or tolerated where nothing is protected anyway, or the end of the
boot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from appliance.errors import BootError

Outcome = Literal["done", "tolerated", "not applicable"]


@dataclass(frozen=True)
class Measure:
    """One measure and what became of it; `detail` names what was found, never a value."""

    name: str
    outcome: Outcome
    detail: str = ""

    def as_json(self) -> dict[str, str]:
        """Plain data for `/health`."""
        return {"name": self.name, "outcome": self.outcome, "detail": self.detail}


def take(name: str, action: Callable[[], str | None], tolerant: bool) -> Measure:
    """Do it; an OSError or ValueError says that the kernel refused. The measure's detail is what
    `action` returns. BootError where a refusal is not tolerated."""
    try:
        detail = action()
    except (OSError, ValueError) as error:
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        if not tolerant:
            raise BootError(f"hardening: {name} failed: {found}", code="hardening-refused",
                            hint="run on a kernel that allows it, without a debugger") from None
        return Measure(name, "tolerated", found)
    return Measure(name, "done", detail or "")
