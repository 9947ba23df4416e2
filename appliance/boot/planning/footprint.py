"""The memory of a model, part by part, reckoned from its header before anything is loaded.

The header is read for this, and not believed: what is loaded later decides its own size again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from mmap import PAGESIZE

from appliance.boot.planning import residency
from appliance.codec.printable import quantity
from appliance.engine import second_engine
from appliance.engine.batch import draft
from appliance.engine.batch.head import HEAD_CONTEXT, HEAD_ROWS
from appliance.engine.batch.plan import SPECULATING
from appliance.engine.decode.chain import scratch
from appliance.engine.decode.chain.sweeping import rows_nbytes
from appliance.engine.forward.forward import (
    UNITS_A_THREAD,
    WANTED,
    choices_nbytes,
    parts_nbytes,
    private_sizes,
    row_widths,
    rows_each,
    shared_nbytes,
    stride,
)
from appliance.engine.forward.kvcache import WORD_NBYTES, page_nbytes, pages_of, slot_nbytes
from appliance.engine.forward.seats import dummy_seats
from appliance.engine.forward.states import division, least_nbytes, log_nbytes, state_nbytes
from appliance.errors import ApplianceError
from appliance.families.architecture import Architecture
from appliance.families.extension import Extension, extended_metadata
from appliance.families.header import architecture_of
from appliance.families.names import PLACES
from appliance.families.tensors import GuessHead, guess_head, is_vector, required_shapes, roles_of
from appliance.kernels.layouts.shapes import SHAPES, padded_rows
from appliance.kernels.layouts.step import COUNTER_NBYTES
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file.gguf import GGUFFile, TensorInfo
from appliance.models.file.metadata import Metadata, Strings
from appliance.models.file.roles import Role, by_rank
from appliance.models.file.tiling import Tiling
from appliance.models.sources import hidden_rows, read_ahead
from appliance.models.sources.streamed import EMBEDDING
from appliance.models.sources.worker import SLOTS
from appliance.policy.schema import Limits, Model, Policy, Tenant
from appliance.state import sessions

LOADING_BYTES = 24 << 20
"""What loading a resident model takes beside its weights while it runs: chunks that are read, hashed and repacked."""

_HEADER_FACTOR, _TOKEN_BYTES = 9, 180  # metadata and tokenizer, per byte of the header and per token: measured
_TEMPLATE_FACTOR = 176  # of a chat template, per character, while it is compiled
_PAIR_BYTES, _SWEPT_TEXTS = 64, 103 * (128 << 10)  # of pairs, for each token; of the rooms of bodies and texts
_WRITER_FACTOR = 640  # of the room in which tokens become text, for each byte of the longest token's row
_TILE_BYTES = 500  # of Python objects and tags for each tile that is streamed
_HUGE = 2 << 20  # the kernel may back a buffer with pages of this size
_VECTOR_COPIES = 3  # as a source has them, a model, and its user as a draft, each in pages of its own
_VECTOR_BYTES = 256  # by which a copy is aligned, and what may be read behind it


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a model. It has `slots` of keys and values, and passes of up to `rows` rows.
    `resident` bytes of its weights are kept decrypted and the rest streamed; None: all of it
    resident. `kept` bytes of the rest are kept encrypted, and the others read in each pass. With
    `drop`, there is no memory for them in the page cache. `foreign`: why llama.cpp runs it, if it
    does."""

    slots: int
    rows: int
    resident: int | None = None
    kept: int = 0
    drop: bool = False
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes that something takes."""

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SnapshotRoom:
    """The states of earlier texts that `prefix_cache` has room for, of a model whose layers have
    states."""

    state: int  # bytes of each
    count: int  # of all tenants
    least: int  # bytes of `prefix_cache.size` with which each tenant has one
    tenants: int  # states that give each tenant who may ask the model one, by its weight

    @property
    def lack(self) -> str | None:
        """Why no text is kept; None where each tenant has room for a state."""
        if self.count >= self.tenants:
            return None
        return (f"prefix_cache keeps no text: it has room for {quantity(self.count, 'state')} of "
                f"{kibibytes(self.state)} each, and tenants need {self.tenants} by their weights; the least size that "
                f"keeps some of each is {self.size}")

    @property
    def size(self) -> str:
        """The least size, as policies have it."""
        return f"{-(-self.least // 2**20)}MiB"


@dataclass(frozen=True, slots=True)
class Footprint:
    """One model of a policy, by its header. A file that says nothing usable has its size as
    weights, and no shape: loading reports it."""

    model: Model
    size: int  # of the file
    sealed: bool
    tiles: Tiling | None
    shape: Architecture | None
    context: int  # positions of a slot
    draft: Architecture | None = None
    draft_tiles: Tiling | None = None
    foreign: str | None = None  # why llama.cpp runs it; what that takes beside the file is not reckoned
    fault: str | None = None  # why the header says nothing usable
    roles: Mapping[str, Role] = field(default_factory=dict)  # of its tensors
    draft_roles: Mapping[str, Role] = field(default_factory=dict)
    steady: bool = False  # passes have one size: dummy rows have seats
    sweeps: bool = False  # texts become tokens, and tokens bytes, by whole tables

    @property
    def head(self) -> GuessHead | None:
        """Its layer that guesses, where the policy asks for it and the file has it."""
        if self.model.speculation != "heads" or self.shape is None or self.tiles is None:
            return None
        return guess_head(self.shape, self.tiles.gguf.tensors)

    @property
    def streaming(self) -> bool | str:
        """The policy's `streaming_decrypt`; llama.cpp keeps all of a model."""
        return False if self.foreign is not None else self.model.streaming_decrypt

    @property
    def name(self) -> str:
        """The model's name in the policy."""
        return self.model.name

    @property
    def weights(self) -> int:
        """Bytes of all matrices in kernel order; the file's size where it has no usable header."""
        if self.tiles is None:
            return self.size
        return sum(map(residency.packed_nbytes, residency.matrices(self.tiles, self.roles)))

    @property
    def records(self) -> int:
        """Bytes of the records that a pass over the sealed model reads."""
        if self.tiles is None or not self.sealed:
            return 0
        return sum(each.records_nbytes for each in residency.read_by_a_pass(self.tiles, self.roles))

    @property
    def readable_ahead(self) -> int:
        """Bytes of its file that may be read ahead in a pass over the streamed model. None of a
        plain one whose plaintext the policy bounds: what is read ahead of it is plaintext that
        nobody counts."""
        if self.tiles is None or self.sealed:
            return self.records
        if self.streaming is True:
            return 0
        return sum(each.runs * each.run_nbytes for each in residency.read_by_a_pass(self.tiles, self.roles))

    def _embedding(self) -> int:
        """Bytes of embeddings that a streamed model keeps, so that looking them up shows nothing.
        """
        if self.tiles is None or self.model.access_pattern == "leaks" or EMBEDDING not in self.tiles.gguf.tensors:
            return 0
        return hidden_rows.nbytes(self.tiles.of(EMBEDDING))

    @property
    def chosen(self) -> float:
        """The share of its experts that a row uses; 1 of a model without."""
        return 1.0 if self.tiles is None else chosen_share(self.tiles.gguf.metadata)

    def cache(self, slots: int) -> int:
        """Bytes of keys and values, those of a draft model or of a layer that guesses included, and
        of logs of guesses."""
        slot, helper = self.slot
        return slots * slot + min(slots, draft.SLOTS) * helper + self._logs(slots)

    def _logs(self, slots: int) -> int:
        """Bytes of what guesses would do to states."""
        if self.shape is None or self.steady or self.model.speculation == "off":
            return 0
        return min(slots, SPECULATING) * log_nbytes(self.shape)

    @property
    def prefixes(self) -> int:
        """Bytes of keys and values that are kept of earlier texts."""
        kept = self.model.prefix_cache
        return 0 if kept is None or self.foreign is not None else kept.size_bytes

    def snapshots(self, share: Share, tenants: int = 1) -> SnapshotRoom | None:
        """The states that are kept of earlier texts; None where none are asked for."""
        if not self.prefixes or self.shape is None or not self.shape.stateful:
            return None
        page, state = page_nbytes(self.shape, self.model.kv_cache), state_nbytes(self.shape)
        slots = share.slots + (len(dummy_seats(share.rows, self.context)) if self.steady else 0)
        return SnapshotRoom(state, division(self.prefixes, page, state, slots)[1],
                         least_nbytes(page, state, slots, tenants), tenants)

    @property
    def sessions(self) -> int:
        """Bytes of pages on their way to and from the state disk, and of the token ids of those
        there."""
        if not (self.prefixes and self.model.session_persistence and self.shape is not None):
            return 0
        page, state = page_nbytes(self.shape, self.model.kv_cache), state_nbytes(self.shape)
        return sessions.nbytes(page, self.prefixes // page, state)

    @property
    def slot(self) -> tuple[int, int]:
        """Bytes of a whole context's pages and of a state, and of those of the draft model or of
        the layer that guesses."""
        def of(shape: Architecture | None, most: int | None = None) -> int:
            context = 0 if shape is None else min(shape.context(self.context), most or self.context)
            return 0 if shape is None else (
                slot_nbytes(shape, context, self.model.kv_cache) + state_nbytes(shape)
                + WORD_NBYTES * pages_of(context))
        head = self.head
        return of(self.shape), of(self.draft) if head is None else of(head.architecture, HEAD_CONTEXT)

    def activations(self, rows: int, threads: int) -> int:
        """Bytes of the buffers of a pass, those of a draft model or of a layer that guesses
        included, of sampling, and of the seats of dummy rows."""
        total = self._head_activations(rows, threads)
        if self.shape is not None:
            total += scratch.nbytes(self.shape.vocabulary) + self._dummies(rows)
        for shape, tiles, roles, more in (
                (self.shape, self.tiles, self.roles, {}),
                (self.draft, self.draft_tiles, self.draft_roles, {"wanted": draft.SLOTS})):
            if shape is not None and tiles is not None:
                total += activations_nbytes(shape, widths(tiles.gguf.tensors, roles), rows=rows, threads=threads,
                                            context=shape.context(self.context), **more)
        return total

    def _head_activations(self, rows: int, threads: int) -> int:
        """Bytes of the buffers of a layer that guesses."""
        head = self.head
        if head is None or self.tiles is None:
            return 0
        own, kinds = head.architecture, widths(head.view(self.tiles.gguf.tensors), head.roles)
        return activations_nbytes(own, kinds, rows=max(min(rows, HEAD_ROWS), draft.SLOTS), threads=threads,
                                  context=min(own.context(self.context), HEAD_CONTEXT), wanted=draft.SLOTS)

    def _dummies(self, rows: int) -> int:
        """Bytes of the seats of dummy rows."""
        if not self.steady or self.shape is None:
            return 0
        context = self.shape.context(self.context)
        seats, page = dummy_seats(rows, context), page_nbytes(self.shape, self.model.kv_cache)
        return page * sum(map(pages_of, seats)) + (WORD_NBYTES * pages_of(context) + state_nbytes(self.shape)
                                                   ) * len(seats)

    def lines(self, share: Share, threads: int) -> Iterator[Line]:
        """Everything that this model takes with what it is given. Loading comes on top, for one
        model at a time."""
        name = self.name
        if share.resident is None or self.tiles is None:
            whole = self.fault is not None and self.foreign is None
            yield Line(f"{name}: the whole file ({self.fault})" if whole else f"{name}: resident weights",
                       self.weights)
        else:
            if share.resident:
                yield Line(f"{name}: room for resident weights", share.resident)
            if share.kept:
                yield Line(f"{name}: room for encrypted weights", share.kept)
            if self._embedding():
                yield Line(f"{name}: embeddings, encrypted", self._embedding() * 102 // 100)
            yield Line(f"{name}: tile buffers, {threads} x", self._buffers(threads))
        if self.tiles is None or self.shape is None:
            return
        yield Line(f"{name}: vocabulary, names, vectors",
                   words_nbytes(self.tiles, self.roles, self.shape.vocabulary, self._template()))
        if self.sweeps:
            yield Line(f"{name}: tables of tokens, swept", self._swept(self.shape.vocabulary, share.slots))
        slots, (slot, helper) = share.slots, self.slot
        state = state_nbytes(self.shape)
        kind = f"{self.model.kv_cache}, and a state of {kibibytes(state)}" if state else self.model.kv_cache
        guesses = "draft" if self.head is None else "layer that guesses"
        helped = f" and {min(slots, draft.SLOTS)} x {mebibytes(helper)} of its {guesses}" if helper else ""
        yield Line(f"{name}: keys and values ({kind}), {slots} x {mebibytes(slot)}{helped}", self.cache(slots))
        if self.prefixes:
            kept = self.snapshots(share)
            beside = "" if kept is None else f", with {quantity(kept.count, 'state')} of {kibibytes(kept.state)}"
            yield Line(f"{name}: keys and values of earlier texts{beside}", self.prefixes)
        if self.sessions:
            yield Line(f"{name}: sessions on their way to and from the disk", self.sessions)
        beside = ", and seats of dummies" if self.steady else ""
        yield Line(f"{name}: activations, {share.rows} rows a pass{beside}", self.activations(share.rows, threads))

    def reason(self, share: Share, room: int | None) -> str:
        """Why its weights are kept as they are, for people."""
        asked, there = self.streaming, "the memory" if room is None else mebibytes(room)
        if self.foreign is not None:
            return self.foreign
        if asked != "auto":
            return f"streaming_decrypt is {str(asked).lower()}"
        if share.resident is None:
            return f"{mebibytes(self.weights)} of weights fit into {there}"
        return (f"{mebibytes(self.weights)} of weights do not fit into {there} beside the rest, "
                f"{mebibytes(share.resident)} do")

    @property
    def longest_token(self) -> int:
        """Characters of the vocabulary's longest token; 0 where the file tells of none."""
        tokens = None if self.tiles is None else self.tiles.gguf.metadata.get("tokenizer.ggml.tokens")
        return tokens.longest() if isinstance(tokens, Strings) else 0

    def _template(self) -> int:
        """Characters of its chat templates: the policy's, or the file's own."""
        if self.model.chat_template or self.tiles is None:
            return len(self.model.chat_template or "")
        own = map(self.tiles.gguf.metadata.get, ("tokenizer.chat_template", "tokenizer.chat_template.tool_use"))
        return sum(len(each) for each in own if isinstance(each, str))

    def loading(self, share: Share) -> int:
        """Bytes that loading takes for a while."""
        return LOADING_BYTES if share.resident is None or self.tiles is None else 0

    def _swept(self, vocabulary: int, slots: int) -> int:
        """Bytes of a row a token, of pairs, of rows of logits, and of an answer's row of counts.
        Texts have rooms up to 64 KiB, and tokens one in which they become text."""
        row = max(64, 1 << (self.longest_token + 3).bit_length())  # bytes of a token are letters in the file
        tables = vocabulary * (row + _PAIR_BYTES + 4 * slots)
        return tables + _SWEPT_TEXTS + _WRITER_FACTOR * row + rows_nbytes(vocabulary)

    def _buffers(self, threads: int) -> int:
        """Tiles and a record (a plain file: its rows) for each thread, what is read ahead, what is
        known of tiles."""
        if self.tiles is None:
            return 0
        each = SLOTS * self.tiles.max_tile_nbytes + max(self.tiles.max_record_nbytes, self.tiles.max_tile_nbytes)
        ahead = min(read_ahead.NBYTES, self.readable_ahead)
        return (threads + 1) * each + ahead + _TILE_BYTES * len(self.tiles)


def words_nbytes(tiles: Tiling, roles: Mapping[str, Role], vocabulary: int, template: int) -> int:
    """Bytes of metadata, tokenizer, a chat template of so many characters, and vectors."""
    vectors = sum(-(-(4 * math.prod(each.shape) + _VECTOR_BYTES) // PAGESIZE) * PAGESIZE
                  for name, each in tiles.gguf.tensors.items() if roles.get(name) == "vector")
    words = _HEADER_FACTOR * tiles.header_nbytes + _TOKEN_BYTES * vocabulary + _TEMPLATE_FACTOR * template
    return words + _VECTOR_COPIES * vectors


def mebibytes(size: float) -> str:
    """A size for people."""
    return f"{size / 2**20:,.0f} MiB"


def kibibytes(size: int) -> str:
    """The size of something small, for people."""
    return f"{-(-size // 1024):,} KiB"


def needed(size: int) -> str:
    """Memory that is needed, for people: with as much as this says, it suffices."""
    return mebibytes(-(-size // 2**20) * 2**20)


def there(size: int) -> str:
    """Memory that there is, for people: no more than this says."""
    return mebibytes(size // 2**20 * 2**20)


def positions(model: Model, limits: Limits) -> int:
    """Tokens of a request, prompt and answer, that policy and limits allow; the model may allow
    fewer."""
    return min(model.context_length, limits.prompt_tokens + limits.generation_tokens)


def read(model: Model, policy: Policy, catalogue: Catalogue) -> Footprint:
    """The footprint of a policy's model."""
    file, most = catalogue.of(model), positions(model, policy.limits)
    sealed_file, tiles, fault = _tiling(file)
    size = file.nbytes
    shape = None if tiles is None else _shape(tiles.gguf, rope_of(model))
    context = most if shape is None else shape.context(most)
    drafts = [each for each in policy.models if each.name == model.draft_model and shape is not None]
    helper = _tiling(catalogue.of(drafts[0]))[1] if drafts else None
    roles = {} if tiles is None else known_roles(tiles.gguf, guesses=model.speculation == "heads")
    helper_roles = {} if helper is None else known_roles(helper.gguf)
    foreign = foreign_reason(model, file, policy) if size else None
    return Footprint(model, size, sealed_file, tiles, shape, context, None if helper is None else _shape(helper.gguf),
                     helper, foreign, fault, roles, helper_roles, keeps_cadence(policy),
                     policy.privacy.memory_access == "oblivious")


def askers(model: Model, tenants: Iterable[Tenant]) -> int:
    """As many equal shares as give each tenant who may ask a model one, by its weight."""
    weights = [each.weight for each in tenants if model.name in each.models and each.role != "auditor"]
    return -(-sum(weights) // min(weights)) if weights else 0


def keeps_cadence(policy: Policy) -> bool:
    """Whether passes begin at a fixed interval. Schema 1 has the field, and never kept it."""
    padding = policy.privacy.timing_padding
    return padding is not None and padding.cadence_ms > 0 and policy.appliance.schema_version > 1


def foreign_reason(model: Model, file: ModelFile, policy: Policy) -> str | None:
    """Why the second engine runs `model`; None where ours does, or is to say why it does not."""
    engine = second_engine.find()
    return None if engine is None else engine.foreign_reason(model, file, simulated=policy.simulated)


def _tiling(file: ModelFile) -> tuple[bool, Tiling | None, str | None]:
    """Whether a model's file is sealed, and its tiles; None where its header says nothing usable,
    and why."""
    found = False
    try:
        found = file.sealed
        return found, file.tiling, None
    except ApplianceError as error:
        return found, None, error.summary


def chosen_share(metadata: Metadata) -> float:
    """The share of a model's experts that a row uses, by its header; 1 of a model without."""
    name = metadata.get("general.architecture")
    used, count = (metadata.get(f"{name}.{key}") for key in ("expert_used_count", "expert_count"))
    return used / count if isinstance(used, int) and isinstance(count, int) and 0 < used <= count else 1.0


def known_roles(header: GGUFFile, *, guesses: bool = False) -> Mapping[str, Role]:
    """The role of each tensor as its family's card says; by its rank where the file fits none.
    `guesses`: also of the layer that guesses."""
    try:
        return roles_of(header, guesses=guesses)
    except ApplianceError:
        return by_rank(header)


def rope_of(model: Model) -> Extension | None:
    """The positions beyond those of its file that the policy gives a model."""
    return None if model.rope is None else Extension(model.rope.factor, model.rope.original_context)


def _shape(header: GGUFFile, rope: Extension | None = None) -> Architecture | None:
    try:
        return architecture_of(extended_metadata(header.metadata, rope, header.tensors))
    except ApplianceError:
        return None


def widths(tensors: Mapping[str, TensorInfo], roles: Mapping[str, Role]) -> dict[str, tuple[int, int]]:
    """Most columns of the matrices that take each kind of activations, and of the runs among them;
    formats without a kernel are left out."""
    found: dict[str, tuple[int, int]] = {}
    for name, info in tensors.items():
        if roles.get(name, "vector") != "vector" and info.format.name in SHAPES:
            kind = SHAPES[info.format.name].activation
            most, of_runs = found.get(kind, (0, 0))
            found[kind] = max(most, info.columns), max(of_runs, info.columns if roles.get(name) == "run" else 0)
    return found


def _pages(nbytes: int) -> int:
    return -(-nbytes // _HUGE) * _HUGE if nbytes >= _HUGE else nbytes


def activations_nbytes(a: Architecture, kinds: Mapping[str, tuple[int, int]], *, rows: int, threads: int, context: int,
                       wanted: int = WANTED) -> int:
    """Bytes of the buffers that `forward.Forward` makes for a pass of up to `rows` rows, with
    logits of `wanted` of them. Pages that are never touched are counted, too: a long prompt may
    touch them all. `kinds` as from `widths`; `context`: positions of a slot."""
    shared = [stride(width) * rows * rows_each(a, word) for word, width in row_widths(a).items()]
    shared += [shared_nbytes(a, *kind) * rows for kind in kinds.items()]
    shared += choices_nbytes(a, rows).values()
    shared.append(stride(padded_rows(a.vocabulary)) * wanted)
    shared += [4 * context * layer.head_size for layer in {each.rope: each for each in a.every if each.rope}.values()]
    shared += [4 * context * len({each.head_size for each in a.every})] if a.scales.temperature else []
    private = sum(private_sizes(a, kinds).values())
    private += COUNTER_NBYTES * UNITS_A_THREAD
    vectors = sum(4 * math.prod(size) for name, size in required_shapes(a)
                  if is_vector(name, size) or name == PLACES)
    return sum(map(_pages, shared)) + threads * private + _pages(parts_nbytes(a, threads, context)) + vectors
