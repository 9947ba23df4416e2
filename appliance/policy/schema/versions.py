"""The versions of the policy language, and how a field says in which of them it stands.

A field without a marker is in every version. Markers are arguments of the field's `Field`:

    a new field       Annotated[int | None, Whole(0, 99)] = Field(since=Since(2), default=7, ...)
    an ended field    Vault | None = Field(until=Until(1, "use a broker block"), default=None, ...)
    a changed field   Annotated[str, Pick(("a",))] = Field(was=Was(1, Pick(("a", "b")), instead='use "a"'), ...)
    a changed default only the default itself: the table of the older version keeps the old one

One HCL name may have two fields whose versions do not overlap, so that a block may change its
shape. A file is bound by its declared version. A field that this version lacks is still an
attribute of the bound policy: the marker names its value, so that the program never asks for
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from appliance.policy.schema.kinds import Kind

VERSIONS: Final = (1, 2)
LATEST: Final = VERSIONS[-1]
OPEN: Final = frozenset({2})  # may still change: digests are provisional until the release that freezes it

_SAME: Final = object()


@dataclass(frozen=True)
class Since:
    """The first version that has the field, and what the program reads under older ones."""

    version: int
    reads: Any = None
    derive: Callable[[Mapping[str, Any]], Any] | None = None  # from the block's other attributes, in place of `reads`
    keep: Any = _SAME  # what an upgrade writes to keep the meaning, where `reads` itself cannot be written

    def value(self, others: Mapping[str, Any]) -> Any:
        """Return what the program reads in a block that lacks the field."""
        return self.reads if self.derive is None else self.derive(others)

    def kept(self, reads: Any) -> Any:
        """Return the value that means in this version what `reads` means in an older one."""
        return reads if self.keep is _SAME else self.keep


@dataclass(frozen=True)
class Until:
    """The last version that has the field, what to write instead, and what the program reads under
    newer ones."""

    version: int
    instead: str
    reads: Any = None


@dataclass(frozen=True)
class Was:
    """The values that a field allowed, or their meaning, up to and including a version."""

    until: int
    kind: Kind | None = None
    description: str | None = None
    instead: str = ""  # what to write instead of a value that is no longer allowed
