"""How much memory a policy's models will take: weights, and keys and values, reckoned before anything is loaded.

The headers of the files are read for this, and not believed: what is loaded later decides its own size again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.boot import machine
from appliance.boot.models import cache_nbytes, positions
from appliance.engine import architecture, draft
from appliance.engine.architecture import Architecture
from appliance.engine.kvcache import slot_nbytes
from appliance.errors import ApplianceError
from appliance.models import inspection
from appliance.models.streamed import EMBEDDING
from appliance.policy import Policy
from appliance.policy.schema import Model

LOADING_FACTOR = 1.3
"""A resident model takes its file's size, and this much more while it is read and repacked."""

BASE_BYTES = 200 << 20
"""What the process takes beside models: interpreter, libraries, buffers of requests."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one model. `slots` of keys and values, and those of its draft model while it guesses for this one."""

    name: str
    weights: int
    slots: int = 0
    slot: int = 0
    draft_slots: int = 0
    draft_slot: int = 0

    @property
    def cache(self) -> int:
        """Bytes of all keys and values."""
        return self.slots * self.slot + self.draft_slots * self.draft_slot


def mebibytes(size: float) -> str:
    """A size for people."""
    return f"{size / 2**20:,.0f} MiB"


def _shape(path: Path) -> Architecture | None:
    """The model's shape by its header; None where that says nothing usable: loading reports it."""
    try:
        return architecture.read(inspection.header(path).metadata)
    except ApplianceError:
        return None


def _embeddings(path: Path) -> int:
    """What a streamed model keeps of its weights: embeddings, encrypted. Its buffers are part of the process."""
    try:
        info = inspection.header(path).tensors.get(EMBEDDING)
    except ApplianceError:
        return path.stat().st_size
    return 0 if info is None else info.nbytes


def need(policy: Policy, model: Model, files: dict[str, Path], room: int | None, *, least: bool = False) -> Need:
    """What a model takes where there is `room` for everything; as many slots as `models.load` will make. `least`: with
    the weights streamed where the policy allows it."""
    path = files[model.name]
    size = path.stat().st_size if path.is_file() else 0
    streamed = model.streaming_decrypt is True or (least and model.streaming_decrypt == "auto")
    weights = _embeddings(path) if streamed and size else size
    shape = _shape(path) if size else None
    if shape is None:
        return Need(model.name, weights)
    context = shape.context(positions(model, policy.limits))
    slot, most = slot_nbytes(shape, context, model.kv_cache), cache_nbytes(room)
    slots = policy.limits.concurrent_requests
    slots = slots if most is None else max(1, min(slots, most // slot))
    helper = None if model.draft_model is None else _shape(files[model.draft_model])
    if helper is None:
        return Need(model.name, weights, slots, slot)
    return Need(model.name, weights, slots, slot, min(slots, draft.SLOTS),
                slot_nbytes(helper, helper.context(context), model.kv_cache))


def room(policy: Policy) -> int | None:
    """Bytes for everything: the least of the policy's budget and what is free; None if neither is known."""
    known = (policy.tee.memory_budget_bytes, machine.available_memory())
    return min((size for size in known if size is not None), default=None)


def _loading(needs: Sequence[Need]) -> float:
    """One model at a time is being read; the others are at rest."""
    return (LOADING_FACTOR - 1) * max((each.weights for each in needs), default=0)


def _total(needs: Sequence[Need]) -> float:
    return BASE_BYTES + _loading(needs) + sum(each.weights + each.cache for each in needs)


def keep(policy: Policy, models: Sequence[Model], files: dict[str, Path], room: int | None) -> dict[str, int]:
    """Bytes of weights that each of the models which say "auto" may keep decrypted, where not all can be resident.
    Empty where they can, and where not even streaming helps."""
    if room is None or _total([need(policy, model, files, room) for model in models]) <= room:
        return {}
    left = int(room - _total([need(policy, model, files, room, least=True) for model in models]))
    sizes = {model.name: files[model.name].stat().st_size for model in models if model.streaming_decrypt == "auto"}
    return {} if left < 0 else {name: left * size // sum(sizes.values()) for name, size in sizes.items()}


def shortage(policy: Policy, files: dict[str, Path], room: int | None) -> str | None:
    """The sum, when it is more than there is although what may be streamed is."""
    if room is None:
        return None
    models = [model for model in policy.models if model.name in files]
    if _total([need(policy, model, files, room) for model in models]) <= room:
        return None
    needs = [need(policy, model, files, room, least=True) for model in models]
    loading, total = _loading(needs), _total(needs)
    weights, cache = sum(each.weights for each in needs), sum(each.cache for each in needs)
    if total <= room:
        return None
    slots = ", ".join(f"{each.name} {each.slots} × {mebibytes(each.slot)}" + (
        f" and {each.draft_slots} × {mebibytes(each.draft_slot)} of its draft" if each.draft_slots else "")
        for each in needs if each.slots)
    return (f"{mebibytes(total)} are needed, there are {mebibytes(room)}: {mebibytes(BASE_BYTES)} for the process, "
            f"{mebibytes(weights)} of weights, {mebibytes(loading)} to load the largest, {mebibytes(cache)} of keys "
            f"and values" + (f" ({slots})" if slots else ""))
