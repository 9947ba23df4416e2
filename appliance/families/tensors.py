"""Which tensors a model has: shapes, and which are optional, by its architecture and the card of
its family.

The check runs over the tensor table before any weight is used, and names every missing, surplus or
misshapen tensor at once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from appliance.errors import FormatError
from appliance.families import names
from appliance.families.architecture import Architecture, Convolution, Mamba, Recurrence
from appliance.families.card import Family
from appliance.families.header import architecture_of
from appliance.families.names import in_layer
from appliance.families.table import FAMILIES
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.roles import Role

_SHOWN = 8  # problems listed in one error

Shapes = Iterator[tuple[str, tuple[int, ...]]]


class TensorEntry(Protocol):
    """The part of a tensor that the check needs: its row-major shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix, (length,) of a vector."""


Entry = TypeVar("Entry", bound=TensorEntry)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The optional tensors that a checked model has."""

    output: str  # name of the output head: OUTPUT, or EMBEDDING when the two are tied
    biases: frozenset[str]
    others: frozenset[str] = frozenset()  # all that the family does not always have


def matrix_shapes(architecture: Architecture, index: int, *, fused: bool) -> dict[str, tuple[int, int]]:
    """(rows, columns) of each matrix of a layer, by part name. `fused`: queries, keys and values
    are one."""
    card, width, layer = FAMILIES[architecture.family], architecture.embedding, architecture.layer(index)
    if layer.recurrence is None and not layer.kv_heads:
        return _network_shapes(architecture, index, card)
    if layer.recurrence is not None:
        return _recurrence_shapes(layer.recurrence, width) | _network_shapes(architecture, index, card)
    queries = layer.query_width * (2 if card.output_gate else 1)
    first = {names.QUERY: (queries, width), names.KEY: (layer.kv_width, width),
             names.VALUE: (layer.kv_width, width)}
    if fused:
        first = {names.FUSED: (queries + 2 * layer.kv_width, width)}
    return first | {names.ATTENTION_OUTPUT: (width, layer.query_width)} | _network_shapes(architecture, index, card)


def _recurrence_shapes(recurrence: Recurrence, width: int) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the matrices that a layer has in place of attention's."""
    if isinstance(recurrence, Convolution):
        return {names.CONVOLUTION_IN: (recurrence.projected, width),
                names.CONVOLUTION_OUT: (width, recurrence.columns)}
    if isinstance(recurrence, Mamba):
        return {names.STATE_IN: (recurrence.projected, width), names.STATE_OUT: (width, recurrence.inner)}
    heads = recurrence.heads
    numbers = {names.BOTH: (2 * heads, width)} if recurrence.together else {
        names.RATE: (heads, width), names.PACE: (heads, width)}
    return {names.FUSED: (recurrence.columns, width), names.DELTA_GATE: (recurrence.result, width)} | numbers | {
        names.STATE_OUT: (width, recurrence.result)}


def _recurrence_vectors(recurrence: Recurrence, index: int) -> Shapes:
    """The vectors of such a layer."""
    columns = (recurrence.columns, recurrence.width)
    if isinstance(recurrence, Convolution):
        yield in_layer(index, names.CONVOLUTION), columns
        return
    yield in_layer(index, names.STATE_CONVOLUTION), columns
    yield in_layer(index, names.START, "bias"), (recurrence.heads,)
    if isinstance(recurrence, Mamba):
        yield in_layer(index, names.DECAY, ""), (recurrence.heads, 1)
        yield in_layer(index, names.SKIP, ""), (recurrence.heads, 1)
        yield in_layer(index, names.STATE_NORM), (recurrence.groups, recurrence.inner // recurrence.groups)
        return
    yield in_layer(index, names.DECAY, ""), (recurrence.heads,)
    yield in_layer(index, names.STATE_NORM), (recurrence.size,)


def _network_shapes(a: Architecture, index: int, card: Family) -> dict[str, tuple[int, int]]:
    """(rows, columns) of the matrices of a layer's feed-forward network that every row meets."""
    width, wide, mixture = a.embedding, a.layer(index).feed_forward, a.mixture
    if not wide:
        return {}
    router = {} if mixture is None or not a.mixes(index) else {names.ROUTER: (mixture.count, width)}
    if mixture is not None and router and not mixture.beside:
        shared = mixture.shared
        gate = {names.SHARED_GATE: (shared, width)} if card.gated else {}
        return router | ({} if not shared else gate | {
            names.SHARED_UP: (shared, width), names.SHARED_DOWN: (width, shared)})
    both = "gate_up" in card.fused
    return router | ({names.GATE: (wide, width)} if card.gated and not both else {}) | {
        names.UP: (2 * wide if both else wide, width), names.DOWN: (width, wide)}


def run_shapes(a: Architecture, index: int, tensors: Container[str]) -> dict[str, tuple[int, int, int]]:
    """(matrices, rows, columns) of each run of matrices of a layer, its experts, by part name. Gate
    and up may be one."""
    mixture = a.mixture
    if mixture is None or not a.mixes(index):
        return {}
    count, width, wide = mixture.count, a.embedding, mixture.width
    gate = {names.EXPERT_GATE: (count, wide, width)} if FAMILIES[a.family].gated else {}
    first = gate | {names.EXPERT_UP: (count, wide, width)}
    if in_layer(index, names.EXPERT_GATE_UP) in tensors:
        first = {names.EXPERT_GATE_UP: (count, 2 * wide, width)}
    return first | {names.EXPERT_DOWN: (count, width, wide)}


def required_shapes(architecture: Architecture, tensors: Container[str] = ()) -> Shapes:
    """Every (name, shape) that the model must have. The names of its
    `tensors` decide choices."""
    a, card = architecture, FAMILIES[architecture.family]
    yield names.EMBEDDING, (a.vocabulary, a.embedding)
    yield card.output_norm, (a.embedding,)
    if card.norm_bias:
        yield names.OUTPUT_NORM_BIAS, (a.embedding,)
    if card.places:
        yield names.PLACES, (a.context_length, a.embedding)
    if a.joined:
        yield in_layer(0, names.JOIN), (a.embedding, 2 * a.embedding)
        yield from ((in_layer(0, part), (a.embedding,)) for part in (names.TOKEN_NORM, names.ROW_NORM))
    for index in range(a.layers):
        if card.sinks:
            yield in_layer(index, names.SINKS), (a.layer(index).heads,)
        for part, size in _norms(a, index):
            yield in_layer(index, part), (size,)
            if card.norm_bias:
                yield in_layer(index, part, "bias"), (size,)
        for part, shape in matrix_shapes(a, index, fused=_is_fused(a, index, tensors)).items():
            if part != names.VALUE or not card.value_is_key:
                yield in_layer(index, part), shape
        for part, run in run_shapes(a, index, tensors).items():
            yield in_layer(index, part), run
        recurrence = a.layer(index).recurrence
        if recurrence is not None:
            yield from _recurrence_vectors(recurrence, index)
        if a.mixture is not None and a.mixture.beside and a.mixes(index):
            yield in_layer(index, names.ROUTER, names.SCALE), (a.embedding,)
        if card.experts is not None and card.experts.shared == "gated" and names.SHARED_GATE in matrix_shapes(
                a, index, fused=False):
            yield in_layer(index, names.SHARED_SCALE), (a.embedding,)


def _is_fused(a: Architecture, index: int, tensors: Container[str]) -> bool:
    """Whether a layer has queries, keys and values in one matrix: as its family has them, or as a
    converter may write them for any."""
    if in_layer(index, names.FUSED) in tensors:
        return True
    return "qkv" in FAMILIES[a.family].fused and in_layer(index, names.QUERY) not in tensors


def _norms(a: Architecture, index: int) -> Iterator[tuple[str, int]]:
    """The norms of a layer and their sizes."""
    card = FAMILIES[a.family]
    if card.topology != "post":
        yield names.ATTENTION_NORM, a.embedding
    if card.topology in ("serial", "sandwich") and not card.single:
        yield card.feed_forward_norm, a.embedding
    if card.topology in ("sandwich", "post"):
        yield from ((part, a.embedding) for part in names.RESULT_NORMS)
    if a.mixture is not None and a.mixture.beside and a.mixes(index):
        yield from ((part, a.embedding) for part in (
            names.DENSE_RESULT_NORM, names.EXPERT_NORM, names.EXPERT_RESULT_NORM))
    if card.head_norm_always:
        yield from _head_norms(a, index)


def _head_norms(a: Architecture, index: int) -> Iterator[tuple[str, int]]:
    """The norms of queries and keys, and their sizes."""
    card, layer = FAMILIES[a.family], a.layer(index)
    if card.head_norm is not None and layer.kv_heads:
        whole = card.head_norm == "row"
        yield names.QUERY_NORM, layer.query_width if whole else layer.head_size
        yield names.KEY_NORM, layer.kv_width if whole else layer.head_size


def optional_shapes(architecture: Architecture, tensors: Container[str] = ()) -> Shapes:
    """Every (name, shape) that the model may have."""
    a, card = architecture, FAMILIES[architecture.family]
    yield names.OUTPUT, (a.vocabulary, a.embedding)
    if card.output_bias:
        yield names.OUTPUT_BIAS, (a.vocabulary,)
    widths = {(layer.rope.turned or layer.head_size) // 2 for layer in a.every if layer.rope and layer.rope.factors}
    for size in sorted(widths)[:1]:
        yield names.ROPE_FACTORS, (size,)
        if card.long_factors:
            yield names.LONG_FACTORS, (size,)
            yield names.SHORT_FACTORS, (size,)
    for index in range(a.layers):
        shapes = matrix_shapes(a, index, fused=_is_fused(a, index, tensors))
        for part, shape in shapes.items():
            kind = names.QUERY if part == names.FUSED else part
            if kind in card.biases:
                yield in_layer(index, part, "bias"), (shape[0],)
        for part, run in run_shapes(a, index, tensors).items():
            if part in card.biases:
                yield in_layer(index, part, "bias"), run[:2]
            if part == names.EXPERT_GATE_UP:
                yield in_layer(index, part), run
        if card.experts is not None and card.experts.biased and a.mixture is not None and a.mixes(index):
            yield in_layer(index, names.CHOICE_BIAS, "bias"), (a.mixture.count,)
        if a.mixture is not None and a.mixture.beside and a.mixes(index):
            yield in_layer(index, names.EXPERT_DOWN, names.SCALE), (a.mixture.count,)
        if card.value_is_key and names.VALUE in shapes:
            yield in_layer(index, names.VALUE), shapes[names.VALUE]
        if names.FUSED in shapes:
            yield in_layer(index, names.FUSED), shapes[names.FUSED]
        if not card.head_norm_always:
            for part, size in _head_norms(a, index):
                yield in_layer(index, part), (size,)
        if card.second_norm:
            for kind in ("weight", "bias"):
                yield in_layer(index, names.SECOND_NORM, kind), (a.embedding,)
        recurrence = a.layer(index).recurrence
        if isinstance(recurrence, Mamba):
            yield in_layer(index, names.STATE_CONVOLUTION, "bias"), (recurrence.columns,)
        if card.layer_scale:
            yield in_layer(index, names.LAYER_SCALE), (1,)


def matrices(architecture: Architecture, tensors: Container[str]) -> dict[str, tuple[int, int, int]]:
    """(matrices, rows, columns) that each run of matrices of the model must have, by its name; a
    matrix is a run of one. `tensors`: its own names."""
    shapes = (*required_shapes(architecture, tensors), *optional_shapes(architecture, tensors))
    return {name: (shape[0] if len(shape) > 2 else 1, shape[-2], shape[-1]) for name, shape in shapes
            if len(shape) > 1 and not is_vector(name, shape)}


def roles(architecture: Architecture, tensors: Container[str]) -> dict[str, Role]:
    """The role of each tensor of the model that is among `tensors`, by name."""
    kinds: tuple[Role, ...] = ("vector", "matrix", "run")
    shapes = (*required_shapes(architecture, tensors), *optional_shapes(architecture, tensors))
    return {name: "vector" if is_vector(name, shape) else kinds[len(shape) - 1]
            for name, shape in shapes if name in tensors}


def is_vector(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a vector. Biases of experts and the weights of convolutions have two
    dimensions."""
    part = name.removesuffix(".weight").partition(".")[2].partition(".")[2]
    return len(shape) == 1 or name.endswith(".bias") or part in names.VECTORS


def roles_of(file: GGUFFile, *, guesses: bool = False) -> dict[str, Role]:
    """The role of each tensor of a file, whose tensors are those of its architecture. `guesses`:
    also of the layer that guesses, if there is one. Errors as `architecture_of` and
    `check_tensors`."""
    architecture = architecture_of(file.metadata, file.tensors)
    check_tensors(architecture, file.tensors)
    own, head = roles(architecture, file.tensors), guess_head(architecture, file.tensors)
    if not guesses or head is None:
        return own
    check_tensors(head.architecture, head.view(file.tensors))
    return own | {head.tensors[name]: role for name, role in head.roles.items()}


@dataclass(frozen=True, slots=True)
class GuessHead:
    """A layer that guesses, as a model of one layer. `tensors`: the file's name of each of its
    tensors."""

    architecture: Architecture
    tensors: Mapping[str, str]

    def view(self, tensors: Mapping[str, Entry]) -> dict[str, Entry]:
        """Its own ones among the file's tensors, by its names."""
        return {name: tensors[full] for name, full in self.tensors.items()}

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each of its tensors, by its names."""
        return roles(self.architecture, self.tensors)


def guess_head(a: Architecture, tensors: Container[str]) -> GuessHead | None:
    """The first layer behind the others, which guesses the token after the next: by the row that
    the last of them gave, and the next token. It attends as the last of them that does. None where
    the card or the file has none."""
    card = FAMILIES[a.family]
    if not card.guesses or not a.left_out or in_layer(a.layers, names.JOIN) not in tensors:
        return None
    layer = next(each for each in reversed(a.every) if each.kv_heads and each.recurrence is None)
    own = replace(a, layers=1, left_out=0, joined=True, each=(layer,), heads=layer.heads, kv_heads=layer.kv_heads,
                  head_size=layer.head_size, mixture=None if a.mixture is None else replace(a.mixture, leading=0))
    shapes = (*required_shapes(own, _InFile(a.layers, tensors)), *optional_shapes(own, _InFile(a.layers, tensors)))
    found = {name: _in_file(name, a.layers) for name, _ in shapes if _in_file(name, a.layers) in tensors}
    for name, part, others in ((names.EMBEDDING, names.HEAD_EMBEDDING, ()),
                               (card.output_norm, names.HEAD_NORM, ()),
                               (names.OUTPUT, names.HEAD_OUTPUT, (names.EMBEDDING,))):
        found[name] = next(each for each in (in_layer(a.layers, part), name, *others) if each in tensors)
    return GuessHead(own, found)


@dataclass(frozen=True, slots=True)
class _InFile:
    """Whether the file has a tensor of a layer that guesses, by its name in a model of one
    layer."""

    layer: int
    tensors: Container[str]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _in_file(name, self.layer) in self.tensors


def _in_file(name: str, layer: int) -> str:
    return f"blk.{layer}.{name.removeprefix('blk.0.')}" if name.startswith("blk.0.") else name


def check_tensors(architecture: Architecture, tensors: Mapping[str, TensorEntry]) -> TensorPlan:
    """Compare a tensor table with the architecture; FormatError lists what does not fit."""
    must, may = dict(required_shapes(architecture, tensors)), dict(optional_shapes(architecture, tensors))
    problems = [f"{name} is missing" for name in must if name not in tensors]
    last = architecture.layers + architecture.left_out
    left_out = tuple(f"blk.{index}." for index in range(architecture.layers, last))
    for name, tensor in tensors.items():
        if name.startswith(left_out):
            continue
        shape = must.get(name) or may.get(name)
        if shape is None:
            problems.append(f"{name[:80]!r} is not part of the architecture")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if (names.LONG_FACTORS in tensors) != (names.SHORT_FACTORS in tensors):
        problems.append(f"{names.LONG_FACTORS} and {names.SHORT_FACTORS} go together")
    if problems:
        more = len(problems) - _SHOWN
        listed = "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise FormatError(f"the tensors do not fit the metadata: {listed}",
                          hint=f"the file is not a whole model of the plain {architecture.family} architecture, or is "
                               "damaged")
    matrices = {name.removesuffix("weight") + "bias" for name in (*must, *may) if name.endswith(".weight")
                and len(must.get(name) or may[name]) > 1}
    others = frozenset(name for name in tensors if name in may) | (
        {names.OUTPUT_NORM_BIAS} if names.OUTPUT_NORM_BIAS in must else set())
    return TensorPlan(output=names.OUTPUT if names.OUTPUT in tensors else names.EMBEDDING,
                      biases=frozenset(name for name in tensors if name in matrices), others=others)
