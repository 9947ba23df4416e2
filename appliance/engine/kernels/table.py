"""The kernels of one target in this process, by name: address or ctypes function.

Where they come from: a library built ahead for exactly the sources at hand, if there is one (`ahead.find`); otherwise
they are compiled on first use, which needs numba. The path of the library is the package's own folder or is given
explicitly; no environment variable redirects it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import threading
from pathlib import Path
from typing import Any, Protocol

from appliance.engine.kernels import ahead, targets
from appliance.engine.kernels.signature import Signature
from appliance.errors import EngineError

_log = logging.getLogger(__name__)


class _Origin(Protocol):
    kind: str

    def signature(self, name: str) -> Signature: ...
    def address(self, name: str) -> int: ...
    def names(self) -> tuple[str, ...]: ...


class _Ahead:
    """Kernels of a prebuilt library."""

    kind = "ahead"

    def __init__(self, library: ahead.Library) -> None:
        self._library = library
        try:
            self._handle = ctypes.CDLL(str(library.path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise EngineError(f"kernel library {library.path} does not load: {error}",
                              hint="build it again: appliance kernels build", code="kernel-load") from error

    def signature(self, name: str) -> Signature:
        return self._library.signatures[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._library.signatures)

    def address(self, name: str) -> int:
        symbol = getattr(self._handle, ahead.PREFIX + name)
        return int(ctypes.cast(symbol, ctypes.c_void_p).value or 0)


class _Jit:
    """Kernels compiled in this process."""

    kind = "jit"

    def __init__(self, target: targets.Target) -> None:
        if importlib.util.find_spec("numba") is None:
            raise EngineError(f"no prebuilt kernels for {target.name}, and numba is not installed to compile them",
                              hint="build them: appliance kernels build", code="kernel-missing")
        targets.compile_for(target.name, debug=targets.debugging())
        from appliance.engine.kernels import lower, registry

        self._kernels = registry.definitions()
        self._loader = lower.Loader()

    def signature(self, name: str) -> Signature:
        return self._kernels[name].signature

    def names(self) -> tuple[str, ...]:
        return tuple(self._kernels)

    def address(self, name: str) -> int:
        return self._loader.load(self._kernels[name])


class KernelTable:
    """Kernels by name; each is compiled or looked up once. Safe to use from several threads."""

    def __init__(self, target: targets.Target, origin: _Origin) -> None:
        self.target = target
        self._origin = origin
        self._addresses: dict[str, int] = {}
        self._functions: dict[str, Any] = {}
        self._lock = threading.RLock()

    @property
    def origin(self) -> str:
        """`"ahead"` for a prebuilt library, `"jit"` for kernels compiled in this process."""
        return self._origin.kind

    @property
    def names(self) -> tuple[str, ...]:
        """Every kernel's name, sorted."""
        return self._origin.names()

    def signature(self, name: str) -> Signature:
        """The C signature of a kernel; EngineError if there is no such kernel."""
        try:
            return self._origin.signature(name)
        except KeyError:
            raise EngineError(f"no kernel {name!r} for {self.target.name}", code="kernel-unknown") from None

    def address(self, name: str) -> int:
        """The address of a kernel's code, valid as long as the table lives."""
        with self._lock:
            if name not in self._addresses:
                self.signature(name)
                self._addresses[name] = self._origin.address(name)
            return self._addresses[name]

    def function(self, name: str) -> Any:
        """The kernel as a ctypes function (a call releases the interpreter lock)."""
        with self._lock:
            if name not in self._functions:
                self._functions[name] = self.signature(name).prototype(self.address(name))
            return self._functions[name]


def load(target: str | None = None, library: Path | None = None) -> KernelTable:
    """The kernels of a target (the best of this CPU by default).

    `library`: a prebuilt library to use, and no other: EngineError when it does not fit. Without it the package's
    own prebuilt library is used if it was built from the sources at hand; if not, kernels are compiled (a notice in
    the log says why). Where numba is missing, as in an image, a library that does not fit is an EngineError; where
    there is none, and no target was asked for, the CPU's next best target that has one serves (a warning in the log
    and the self-test's result name it). A process that compiles with checks inside (`targets.compile_for(...,
    debug=True)`) uses no library.
    """
    chosen = targets.detect() if target is None else targets.runnable(target)
    if library is not None:
        return KernelTable(chosen, _Ahead(ahead.open_library(library, chosen)))
    if targets.debugging():
        return KernelTable(chosen, _Jit(chosen))
    try:
        return _prebuilt(chosen)
    except EngineError as error:
        if importlib.util.find_spec("numba") is None:
            if target is not None or error.code != "kernel-missing":
                raise
            return _next_best(chosen)
        if error.code != "kernel-missing":
            _log.warning("kernels are compiled on first use: %s", error.summary)
    return KernelTable(chosen, _Jit(chosen))


def _prebuilt(target: targets.Target) -> KernelTable:
    return KernelTable(target, _Ahead(ahead.open_library(ahead.default_path(target), target)))


def _next_best(best: targets.Target) -> KernelTable:
    """The library of another target that this CPU can run; EngineError says which it can run and which there are."""
    fit = targets.supported()
    for other in fit[1:]:
        if ahead.default_path(other).exists():
            _log.warning("no prebuilt kernels for %s: those for %s run, which are slower", best.name, other.name)
            return _prebuilt(other)
    folder = ahead.default_path(best).parent
    found = sorted(path.stem.removeprefix("kernels-") for path in folder.glob("kernels-*.so"))
    raise EngineError(
        f"no prebuilt kernels that this CPU can run: it runs {', '.join(target.name for target in fit)}; "
        f"{folder} has {', '.join(found) or 'none'}",
        hint=f"build them: appliance kernels build --target {best.name}; for an image: appliance image build "
             f"without --target, or with --target {best.name} too", code="kernel-missing")
