"""Loading the policy's models: unlock, verify the pin, and make an engine of each.

The disk is hostile: each file is read once, and what is hashed against the pin is what is loaded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from appliance.attestation.binding import LoadedModel
from appliance.boot.planning import residency
from appliance.boot.planning.footprint import Share, known_roles, positions, rope_of
from appliance.boot.running.interval import Interval
from appliance.engine import second_engine
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.forward import ROWS, most_slots
from appliance.engine.forward.packing import Packing
from appliance.errors import BootError, EngineError, ModelError
from appliance.families.tensors import roles_of
from appliance.kernels.runtime import quota, table
from appliance.kernels.runtime.table import KernelTable
from appliance.keys import policy_keys
from appliance.keys.providers import Secret
from appliance.models.catalogue import ModelFile
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.opened import OpenModel
from appliance.models.file.roles import Role
from appliance.models.sealed.reader import SealedModel, open_sealed
from appliance.models.sources import native
from appliance.models.sources.resident import ResidentSource, open_resident
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.streamed import StreamedSource
from appliance.models.sources.tagged import PlainTiles, open_tagged
from appliance.policy import Policy
from appliance.policy.schema import Limits, Model
from appliance.secure import interrupts, libcrypto, locked
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

NO_CHATS = "no chat template: completions only"
OwnSource = ResidentSource | StreamedSource


@dataclass(frozen=True)
class RunningModel:
    """One model, ready to answer."""

    policy: Model
    source: OpenModel
    engine: Engine
    template: ChatTemplate | None
    """None for a base model, which continues a text and takes no chats."""

    @property
    def name(self) -> str:
        """Its name in the policy and in requests."""
        return self.policy.name

    @property
    def pin(self) -> bytes:
        """SHA-256 of its file, as it was read."""
        return self.source.sha256

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        return self.engine.tokenizer

    @property
    def context_length(self) -> int:
        """Tokens that a request may take, prompt and answer together: the least of model's,
        policy's and limits'."""
        return self.engine.context

    def prepare(self) -> None:
        """Do what a first request would else do while all others wait."""
        if self.policy.tools or self.policy.structured_output:
            self.engine.constraints.prepare()

    def bound(self) -> LoadedModel:
        """The model as attestation names it: digests of what was read, not of what was asked for.
        """
        header = self.source.header_sha256
        return LoadedModel(name=self.name, sha256=self.source.sha256.hex(),
                           sealed_header_sha256=None if header is None else header.hex())

    @property
    def failure(self) -> str | None:
        """The code of the error that ended it: a disk that lies or fails. None for one that
        answers."""
        return self.source.failure

    @property
    def streamed_plaintext(self) -> int:
        """Bytes of plaintext weights that a model which must be streamed can have at one moment; 0
        for another."""
        return self.source.plaintext_nbytes if self.policy.streaming_decrypt is True else 0

    @property
    def residency(self) -> str:
        """How its weights are kept, for the report of the boot."""
        return self.source.residency

    def close(self) -> None:
        """Stop the engine, then give the weights back; nothing that asks the process to end comes
        between."""
        with interrupts.later():
            try:
                self.engine.close()
            finally:  # keys and weights are wiped, whatever went wrong
                self.source.close()

    def wipe(self) -> None:
        """As `close`, and waits for no thread: what one still does with this memory ends the
        process at worst, which must end anyway."""
        try:
            self.engine.wipe()
        finally:
            self.source.wipe()


@dataclass(frozen=True)
class Loading:
    """The settings that a model is loaded with, beside its part of the policy and its file."""

    limits: Limits
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the bytes read so far, and all."""
    tested: frozenset[str] | None = None
    """Block formats whose kernels passed the self-test; None is all."""
    key: Secret | None = None
    """Of a sealed model; `load` wipes it."""
    kernels: KernelTable = field(default_factory=table.load)
    """Those that were tested, so that none is compiled twice."""
    threads: int | None = None
    """None: as many as the process has CPUs."""
    draft: RunningModel | None = None
    """Guesses for it, and is closed after it."""
    plaintext_budget: int | None = None
    """Bytes of plaintext weights that it may have if it must be streamed; None is no limit."""
    share: Share | None = None
    """Its part of the memory; None is all that policy and limits ask for."""
    users: int = 1
    """Models that it will draft for."""
    interval: Interval | None = None
    """From one pass to the next; None: as fast as it goes."""
    sweeps: bool = False
    """Whether texts and tokens are read by whole sweeps: `privacy.memory_access`."""

    @property
    def memory(self) -> Share:
        """Its part of the memory."""
        return self.share or Share(min(self.limits.concurrent_requests, most_slots(ROWS)), ROWS)

    @property
    def cpus(self) -> int:
        """Threads that the engine will have."""
        return quota.cpus() if self.threads is None else self.threads


def _matrix_formats(roles: Mapping[str, Role], tensors: Mapping[str, TensorInfo]) -> set[str]:
    """Block formats of the matrices: vectors are decoded once, without a kernel."""
    return {tensors[name].format.name for name, role in roles.items() if role != "vector"}


def formats_named_by(files: Iterable[ModelFile]) -> frozenset[str]:
    """Block formats that the files' headers name. Nothing is believed yet: what was loaded is
    compared later."""
    names: set[str] = set()
    for file in files:
        try:
            header = file.supported
            names |= _matrix_formats(known_roles(header), header.tensors)
        except ModelError:
            continue  # the models step reports it, with the pin
    return frozenset(names)


def _streamed(model: Model, tiles: SealedModel | PlainTiles, given: Loading) -> StreamedSource:
    """Stream a model, but for what is to be resident; what is kept encrypted is not read again."""
    share = given.memory
    hidden, resident, roles = model.access_pattern != "leaks", frozenset[str](), known_roles(tiles.gguf)
    if model.streaming_decrypt == "auto":
        resident = residency.choose(tiles.tiling, share.resident or 0, roles, hidden=hidden)
    kept = residency.choose_kept(tiles.tiling, share.kept, resident, roles, hidden=hidden)
    return StreamedSource(tiles, resident=resident, access=model.access_pattern, kept=kept, drop=share.drop,
                          users=given.users, roles=roles_of)


def _open(model: Model, file: ModelFile, given: Loading) -> OwnSource:
    """Verify the publisher's signature and the pins, and read the model. The key is wiped, whatever
    comes of it."""
    path, key, share, packing = file.path, given.key, given.memory, Packing(given.kernels)
    pin, roles = bytes.fromhex(model.sha256), functools.partial(roles_of, guesses=model.speculation == "heads")
    header_pin = None if model.sealed_header_sha256 is None else bytes.fromhex(model.sealed_header_sha256)
    streamed = model.streaming_decrypt is True or (model.streaming_decrypt == "auto" and share.resident is not None)
    try:
        each = _shards(model, file)
        if model.publisher is not None:
            policy_keys.check_publisher(model.publisher, pin, header_pin, path, each)
        if header_pin is None:
            if model.streaming_decrypt is True:
                raise BootError(f"model {model.name}: streaming_decrypt is true, but the file is not sealed: whoever "
                                "has the disk reads its weights", hint="seal it, or leave streaming_decrypt out",
                                code="streaming")
            if streamed:
                return _streamed(model, open_tagged(
                    path, pin, interleave=packing, progress=given.progress, parse=file.parse,
                    tile_size=native.plain_tile_size(given.cpus), pinned_shards=each), given)
            return open_resident(path, pin, given.progress, interleave=packing, parse=file.parse, pinned_shards=each,
                                 roles=roles, unseen=model.access_pattern != "leaks")
        if key is None:
            raise BootError(f"model {model.name}: is sealed, and no key was released", code="model-key")
        if streamed:
            return _streamed(model, open_sealed(path, key.data, header_sha256=header_pin, sha256=pin,
                                                layout=file.layout), given)
        return open_sealed_resident(path, key.data, header_sha256=header_pin, sha256=pin, progress=given.progress,
                                    layout=file.layout, roles=roles)
    finally:
        if key is not None:
            key.wipe()


def _shards(model: Model, file: ModelFile) -> tuple[bytes, ...]:
    """The pins of a model's shards. BootError for a sharded one whose policy does not pin each."""
    count = len(file.files) if model.sealed_header_sha256 is None else 1
    if count > 1 and model.shards is None:
        raise BootError(f"model {model.name}: is in {count} shards, and the policy does not pin each",
                        hint="pin them (shards, of schema 2) as printed by: appliance model pin FILE", code="shards")
    return tuple(map(bytes.fromhex, model.shards or ()))


def drafts_first(models: Iterable[Model]) -> list[Model]:
    """The order to load models in: who drafts for others before them. A draft model has no draft
    itself."""
    return sorted(models, key=lambda model: model.draft_model is not None)


def users(policy: Policy, model: Model) -> int:
    """Models of a policy that have this one for a draft."""
    return sum(other.draft_model == model.name for other in policy.models)


def _check_budget(model: Model, source: OwnSource, given: Loading) -> None:
    """Make a streamed model's buffers, of less plaintext where the budget is small. BootError when
    it can have more than it may."""
    source.prepare(given.cpus)
    budget = given.plaintext_budget
    if model.streaming_decrypt is not True or budget is None:
        return
    if source.plaintext_nbytes > budget:
        source.narrow()
    if source.plaintext_nbytes > budget:
        raise BootError(
            f"model {model.name}: {given.cpus} threads hold {source.alive_limit} bytes of tiles, and with vectors "
            f"{source.plaintext_nbytes} bytes of plaintext weights; tee.plaintext_budget leaves {budget}",
            hint="seal the model with smaller tiles, or raise the budget", code="plaintext-budget")


def plaintext_left(policy: Policy, running: Mapping[str, RunningModel]) -> int:
    """The bytes that the plaintext budget leaves beside the models that are loaded."""
    return policy.tee.plaintext_budget_bytes - sum(model.streamed_plaintext for model in running.values())


def native_code() -> KernelTable:
    """The kernels; and, for later, the system's libcrypto: nothing can be loaded once the process
    is in its sandbox."""
    libcrypto.load()
    return table.load()


def description(running: Mapping[str, RunningModel], reasons: Mapping[str, str], *, tolerant: bool) -> str:
    """How each model is kept, and why, for the report of the boot. BootError when memory for
    secrets could not be locked, unless that is tolerated."""
    missing = locked.shortfall()
    if missing is not None and not tolerant:
        raise BootError(f"memory: {missing}", code="memory-lock", hint="raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in "
                        "systemd, `--ulimit memlock=-1` of a container), or give the process CAP_IPC_LOCK")
    kept = [", ".join([f"{name}: {model.residency} ({reasons[name]})", *([] if model.template else [NO_CHATS]),
                       *([] if model.engine.pass_rows is None else [f"{model.engine.pass_rows} rows in each pass"]),
                       *(f"warning: {warning}" for warning in model.tokenizer.warnings)])
            for name, model in running.items()]
    return "; ".join(kept if missing is None else [*kept, missing])


@contextlib.contextmanager
def _named(model: Model) -> Iterator[None]:
    """Say which of the policy's models an error of its file is about: the file's parsers do not
    know."""
    try:
        yield
    except (ModelError, EngineError) as error:
        if not error.summary.startswith("model "):
            error.summary = f"model {model.name}: {error.summary}"
        raise


def load(model: Model, file: ModelFile, given: Loading) -> RunningModel:
    """Load one model of a policy from its file. Raises ModelError, EngineError or BootError;
    nothing stays loaded then."""
    with _named(model):
        if given.memory.foreign is not None:
            return _foreign(model, file, given)
        source = _open(model, file, given)
        return _start(model, source, given)


def _foreign(model: Model, file: ModelFile, given: Loading) -> RunningModel:
    """A model on llama.cpp. Its publisher's signature and its pin are checked as for any other."""
    pin = bytes.fromhex(model.sha256)
    if model.publisher is not None:
        policy_keys.check_publisher(model.publisher, pin, None, file.path)
    if given.interval is not None:
        raise BootError(f"model {model.name}: llama.cpp runs it, and keeps no cadence", code="cadence",
                        hint="leave privacy.timing_padding.cadence out")
    second = second_engine.find()
    source: OpenModel = second.ForeignSource(file.path, pin, given.progress, parse=file.parse)
    try:
        engine: Engine = second.open_foreign(
            source, context_length=positions(model, given.limits), slots=given.memory.slots, rows=given.memory.rows,
            threads=given.threads, speculate=model.speculation != "off")
        return RunningModel(model, source, engine, _template(model, source, engine))
    except BaseException:
        source.close()
        raise


def _template(model: Model, source: OpenModel, engine: Engine) -> ChatTemplate | None:
    """The model's chat template, once its engine runs: what is wrong with the model comes before
    it. The engine is closed where the template is wrong."""
    try:
        return ChatTemplate.of_model(source.metadata, override=model.chat_template,
                                     fallback=model.chat_template_fallback)
    except BaseException:
        engine.close()
        raise


def _hold(found: RunningModel, interval: Interval | None) -> None:
    """Measure how many rows passes at an interval may have. The engine is closed where it cannot be
    held."""
    if interval is not None:
        try:
            interval.hold(found.name, found.engine)
        except BaseException:
            found.engine.close()
            raise


def _start(model: Model, source: OwnSource, given: Loading) -> RunningModel:
    """Make an engine of an opened source, see `load`; the source is closed if that fails."""
    try:
        _check_budget(model, source, given)
        used = _matrix_formats(source.roles, source.tensors)
        if given.tested is not None and not used <= given.tested:
            raise BootError(
                f"model {model.name}: uses {', '.join(sorted(used - given.tested))}, which the self-test did not cover",
                code="self-test-incomplete", hint="the file changed between the self-test and loading")
        options = EngineOptions(context_length=positions(model, given.limits), slots=given.memory.slots,
                                kv_cache=model.kv_cache, rope=rope_of(model), threads=given.threads,
                                rows=given.memory.rows, speculate=model.speculation != "off",
                                heads=model.speculation == "heads", steady=given.interval is not None,
                                sweeps=given.sweeps,
                                prefix_nbytes=0 if model.prefix_cache is None else model.prefix_cache.size_bytes)
        engine = Engine.open(source, options, kernels=given.kernels,
                             draft=None if given.draft is None else cast("OwnSource", given.draft.source))
        found = RunningModel(model, source, engine, _template(model, source, engine))
        _hold(found, given.interval)
        return found
    except EngineError as error:
        source.close()
        if error.code == "draft-vocabulary":
            raise BootError(f"model {model.name}, draft_model {model.draft_model}: {error.summary}", code=error.code,
                            hint=error.hint) from None
        raise
    except BaseException:
        source.close()
        raise
