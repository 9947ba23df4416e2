"""The memory of a deployment as a table: what each part takes, and what of the weights stays resident."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.boot import budget
from appliance.policy import Policy


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes that something takes."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`room`: bytes that there are, None where unknown; `refusal`: the arithmetic, when they do not suffice."""

    lines: tuple[Line, ...]
    room: int | None
    refusal: str | None

    @property
    def nbytes(self) -> int:
        """Bytes of all lines."""
        return sum(line.nbytes for line in self.lines)


def plan(policy: Policy, files: dict[str, Path], room: int | None) -> Plan:
    """What a boot by `policy` would do with `room` bytes. Files that cannot be read count as nothing."""
    keep = budget.keep(policy, policy.models, files, room)
    refusal = budget.shortage(policy, files, room)
    lines = [Line("process and buffers", budget.BASE_BYTES)]
    loading = 0
    for model in policy.models:
        streamed = model.streaming_decrypt is True or model.name in keep or (
            refusal is not None and model.streaming_decrypt == "auto")
        need = budget.need(policy, model, files, room, least=streamed)
        if streamed:
            lines.append(Line(f"{model.name}: streamed; embeddings, encrypted", need.weights))
            if model.name in keep:
                lines.append(Line(f"{model.name}: room for resident weights", keep[model.name]))
        else:
            lines.append(Line(f"{model.name}: resident weights", need.weights))
        loading = max(loading, round((budget.LOADING_FACTOR - 1) * need.weights))
        lines.append(Line(f"{model.name}: keys and values, {need.slots} x {budget.mebibytes(need.slot)}", need.cache))
    lines.append(Line("loading the largest", loading))
    return Plan(tuple(lines), room, refusal)
