"""llama.cpp in the place of our forward pass, for architectures that we do not run. Development
only.

It takes a path, and would read the disk a second time, after the check. So the model is read once,
checked against its pin, and given to it as a file without a name, in memory, that nobody can change
any more (memfd_create(2) with seals).

The library comes with llama-cpp-python (the extra `llamacpp`), of which only the ctypes
declarations are used. Text, sampling, scheduling and limits stay ours: this module gives logits for
rows of (token, position, slot), as `forward.Forward` does, and keeps no promise about bits or about
memory being wiped.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib
import importlib.util
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.engine import Engine, EngineParts
from appliance.engine.forward.forward import Forward, Logits
from appliance.engine.forward.kvcache import KVCache, pages_of
from appliance.errors import EngineError, FormatError, ModelError
from appliance.families.architecture import CONTEXT_CAP, Architecture
from appliance.kernels.runtime import quota, table
from appliance.kernels.runtime.boundary import BatchLimits, Boundary
from appliance.kernels.runtime.threads import Pool
from appliance.models.file import gguf, pins
from appliance.models.file.disk import Progress, RandomFile
from appliance.models.file.gguf import Parse
from appliance.models.file.metadata import optional_int
from appliance.models.file.opened import OpenModel
from appliance.models.sources.source import InMemory, KernelMatrix
from appliance.text import tokenizer

_MODULE = "llama_cpp.llama_cpp"
_WANTED = 64
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def available() -> bool:
    """Whether llama-cpp-python is installed."""
    return importlib.util.find_spec("llama_cpp") is not None


def loaded() -> bool:
    """Whether a model has asked for the library."""
    return _MODULE in sys.modules


def library() -> Any:
    """Return the library, loaded: before a sandbox shuts its folder. Raises EngineError if that
    fails."""
    os.environ.setdefault("KMP_AFFINITY", "disabled")  # LLVM's OpenMP ends the process where it may not pin threads
    try:
        return importlib.import_module(_MODULE)
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(f"llama.cpp cannot be loaded: {error}", code="backend",
                          hint="pip install 'llama-cpp-python>=0.3.9'") from None


class ForeignSource(InMemory, OpenModel):
    """A whole model file in memory. It hands out no weights: its engine takes `path`."""

    def __init__(self, path: Path, pin: bytes | None, progress: Progress | None = None, *,
                 parse: Parse = gguf.parse) -> None:
        """Read the file at `path`; `parse` finds the header in bytes that have the pin. Raises
        PinError for other bytes than pinned (32 bytes, SHA-256), FormatError and UnsupportedError
        for its header, ModelError for disk and memory."""
        try:
            self._descriptor = os.memfd_create("model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ModelError(f"no file in memory for {path}: {error.strerror or error}") from None
        try:
            self.sha256 = self._read(path, progress)
            if pin is not None:
                pins.check(path, pin, self.sha256)
            with mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) as data:
                self.gguf = parse(data, len(data))
        except BaseException:
            self.close()
            raise

    @property
    def residency(self) -> str:
        """How its weights are kept, for people."""
        return "run by llama.cpp"

    def _read(self, path: Path, progress: Progress | None) -> bytes:
        digest = hashlib.sha256()
        with RandomFile(path) as file:
            for part in file.chunks(progress):
                digest.update(part)
                self._write(part, path)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return digest.digest()

    def _write(self, part: memoryview, path: Path) -> None:
        while len(part):
            try:
                part = part[os.write(self._descriptor, part):]
            except OSError as error:
                raise ModelError(f"no memory for {path}: {error.strerror or error}", code="memory") from None

    @property
    def path(self) -> Path:
        """Where this process finds the file."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def weight(self, name: str) -> KernelMatrix:
        """None: FormatError."""
        raise FormatError(f"tensor {name!r} is for another engine")

    def vector(self, name: str) -> NDArray[np.float32]:
        """None: FormatError."""
        raise FormatError(f"tensor {name!r} is for another engine")

    def close(self) -> None:
        """Give the memory back, when the engine has let go of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The architecture's facts that the engine asks for."""

    vocabulary: int


@dataclass(frozen=True, slots=True)
class _Threads:
    """The methods of a pool that the engine calls: llama.cpp has its own threads."""

    threads: int

    def close(self) -> None:
        """They end with the context."""


class LlamaCpp:
    """A model and a context of llama.cpp, as a forward pass and as its cache."""

    streamed = False
    expert_reads = 0.0, 1, 1  # not known

    def __init__(self, api: Any, source: ForeignSource, context: int, slots: int, threads: int, rows: int) -> None:
        """Raises EngineError if llama.cpp does not take the model."""
        self._api, self.context, self.slots = api, context, slots
        self._quiet = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(str(source.path).encode(), api.llama_model_default_params())
        if not self._model:
            raise EngineError("llama.cpp does not open the model", code="backend",
                              hint="it may be newer than the installed llama-cpp-python")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = context * slots, slots
        params.n_batch = params.n_ubatch = rows
        params.n_threads = params.n_threads_batch = threads
        self._state = api.llama_init_from_model(self._model, params)
        if not self._state:
            api.llama_model_free(self._model)
            raise EngineError(f"llama.cpp makes no context of {slots} x {context} positions", code="backend",
                              hint="lower context_length or concurrent_requests")
        self.vocabulary = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model)))
        self.boundary = Boundary(BatchLimits(rows, _WANTED, self.vocabulary, context, slots))
        self._memory = api.llama_get_memory(self._state)
        self._rows = api.llama_batch_init(rows, 0, 1)

    def run(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int],
            wanted: Sequence[int]) -> Logits:
        """One pass, as `Forward.run`."""
        checked, api, rows = self.boundary.check(tokens, positions, slots, wanted), self._api, self._rows
        for run in checked.runs:  # the guesses that stood there were wrong
            api.llama_memory_seq_rm(self._memory, run.slot, run.position, -1)
        asked = set(checked.wanted.tolist())
        rows.n_tokens = len(checked.tokens)
        for index in range(len(checked.tokens)):
            rows.token[index], rows.pos[index] = int(checked.tokens[index]), int(checked.positions[index])
            rows.n_seq_id[index], rows.seq_id[index][0] = 1, int(checked.slots[index])
            rows.logits[index] = index in asked
        status = api.llama_decode(self._state, rows)
        self.boundary.done(checked)
        if status != 0:
            raise EngineError(f"llama.cpp could not run a pass: {status}", code="backend")
        out = np.empty((len(checked.wanted), self.vocabulary), np.float32)
        for place, index in enumerate(checked.wanted.tolist()):
            out[place] = np.ctypeslib.as_array(api.llama_get_logits_ith(self._state, index), (self.vocabulary,))
        return out

    @property
    def unclaimed(self) -> int:
        """Pages: as many as anybody may ask for, since each slot has its whole context."""
        return pages_of(self.context)

    def claim(self, slot: int, positions: int) -> None:
        """Nothing: each slot has its whole context."""

    def restart(self, slot: int) -> None:
        """Forget a slot, which goes on."""
        self.give_back(slot)

    def give_back(self, slot: int) -> None:
        """Forget a slot."""
        self._api.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def release(self) -> None:
        """Overwrite the cache and give everything back; a second call does nothing."""
        if self._state:
            self._api.llama_memory_clear(self._memory, True)
            self._api.llama_batch_free(self._rows)
            self._api.llama_free(self._state)
            self._api.llama_model_free(self._model)
            self._state = self._model = ctypes.c_void_p()


def open_foreign(source: ForeignSource, *, context_length: int, slots: int, rows: int,
                 threads: int | None = None, speculate: bool = True) -> Engine:
    """Return an engine on llama.cpp, with `rows` tokens a pass. Errors as `Engine.open`."""
    words = tokenizer.load(source.metadata)
    name = str(source.metadata.get("general.architecture"))
    promised = optional_int(source.metadata, f"{name}.context_length", CONTEXT_CAP)
    used = quota.cpus() if threads is None else threads
    state = LlamaCpp(library(), source, min(promised, context_length), slots, used, rows)
    if words.vocab_size > state.vocabulary:
        state.release()
        raise EngineError(f"the tokenizer has {words.vocab_size} tokens, the model {state.vocabulary} rows")
    # Not our classes, but all that the engine uses of them.
    parts = EngineParts(cast(Architecture, _Shape(state.vocabulary)), cast(Forward, state), cast(KVCache, state),
                        cast(Pool, _Threads(used)), words, Scratch(words.vocab_size, table.load()))
    return Engine(source, parts, speculate=speculate)
