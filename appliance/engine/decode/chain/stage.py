"""The two kinds of stages: an adjustment changes logits, a narrowing keeps some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.scratch import Scratch
from appliance.policy.schema.sampling import PARAMETERS

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]


class Adjustment(Protocol):
    """Changes logits of single tokens. It keeps what it needs to know of one answer."""

    def asks(self) -> bool:
        """Whether there is anything to change now."""
        ...

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Change `logits` (vocabulary,) in place."""
        ...

    def accept(self, token: int) -> None:
        """Record that `token` became part of the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Keeps some of the candidates that are left, by the value of one parameter.

    `keep` gets their logits, in ascending order of ids, and returns places in them, ascending; None
    keeps all. The best always stays. It may use all of the scratch but `some` and `adjusted`, where
    the logits may be.
    """

    parameter: str
    keep: Callable[[Logits, float, Scratch], Ids | None]

    @property
    def off(self) -> float:
        """The parameter's value that keeps all."""
        return next(each.off for each in PARAMETERS if each.name == self.parameter)
