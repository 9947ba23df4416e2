"""The kernels of one target in this process, by name: address or ctypes function.

Where they come from: a library built ahead for exactly the sources at hand, if there is one
(`ahead.find`); otherwise they are compiled on first use, which needs numba. The path of the library
is the package's own folder or is given explicitly; no environment variable redirects it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appliance.errors import EngineError
from appliance.kernels.runtime import ahead, targets
from appliance.kernels.runtime.signature import CSignature

_log = logging.getLogger(__name__)
_COMPILER = "appliance.kernels.compiler"  # by name: images hold no compiler


class KernelTable:
    """Kernels by name; each is compiled or looked up once. Safe to use from several threads."""

    def __init__(self, target: targets.Target, origin: str, signatures: Mapping[str, CSignature],
                 find: Callable[[str], int], *, source: str = "", library_sha384: str | None = None) -> None:
        """`find` gives the address of a kernel's code."""
        self.target = target
        self.origin = origin
        """`"ahead"` for a prebuilt library, `"jit"` for kernels compiled in this process."""
        self.names = tuple(signatures)
        """Every kernel's name, sorted."""
        self.source = source
        """For a report: which library, or why kernels are compiled here."""
        self.library_sha384 = library_sha384
        """SHA-384 (hex) of the library; None for kernels compiled in this process."""
        self._signatures, self._find = signatures, find
        self._addresses: dict[str, int] = {}
        self._functions: dict[str, Any] = {}
        self._lock = threading.RLock()

    def signature(self, name: str) -> CSignature:
        """The C signature of a kernel; EngineError if there is no such kernel."""
        if name not in self._signatures:
            raise EngineError(f"no kernel {name!r} for {self.target.name}", code="kernel-unknown")
        return self._signatures[name]

    def address(self, name: str) -> int:
        """The address of a kernel's code, valid as long as the table lives."""
        with self._lock:
            if name not in self._addresses:
                self.signature(name)
                self._addresses[name] = self._find(name)
            return self._addresses[name]

    def function(self, name: str) -> Any:
        """The kernel as a ctypes function (a call releases the interpreter lock)."""
        with self._lock:
            if name not in self._functions:
                self._functions[name] = self.signature(name).prototype(self.address(name))
            return self._functions[name]


def _prebuilt(target: targets.Target, path: Path | None = None) -> KernelTable:
    """Kernels of a prebuilt library, by default the package's own."""
    library = ahead.open_library(path or ahead.default_path(target), target)
    try:
        handle = ctypes.CDLL(str(library.path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise EngineError(f"kernel library {library.path} does not load: {error}",
                          hint="build it again: appliance kernels build", code="kernel-load") from error
    absent = [name for name in library.signatures if not hasattr(handle, ahead.PREFIX + name)]
    if absent:
        raise EngineError(f"kernel library {library.path} lacks {', '.join(absent)}, which its manifest names",
                          hint="build it again: appliance kernels build", code="kernel-damaged")

    def find(name: str) -> int:
        return int(ctypes.cast(getattr(handle, ahead.PREFIX + name), ctypes.c_void_p).value or 0)

    return KernelTable(target, "ahead", library.signatures, find, library_sha384=library.sha384,
                       source=f"prebuilt, {library.path.name}, SHA-256 {library.sha256}")


def _compiled(target: targets.Target, reason: str) -> KernelTable:
    """Kernels compiled in this process, for a reason that is told."""
    if importlib.util.find_spec("numba") is None:
        raise EngineError(f"no prebuilt kernels for {target.name}, and numba is not installed to compile them",
                          hint="build them: appliance kernels build", code="kernel-missing")
    targets.compile_for(target.name, debug=targets.debugging())
    kernels = importlib.import_module(f"{_COMPILER}.registry").definitions()
    loader = importlib.import_module(f"{_COMPILER}.lower").Loader()

    def find(name: str) -> int:
        return int(loader.load(kernels[name]))

    return KernelTable(target, "jit", {name: kernel.signature for name, kernel in kernels.items()}, find,
                       source=f"compiled here: {reason}")


def load(target: str | None = None, library: Path | None = None) -> KernelTable:
    """The kernels of a target (the best of this CPU by default).

    `library`: a prebuilt library to use, and no other: EngineError when it does not fit. Without
    it, the package's own prebuilt library decides:

    from the sources at hand    it is used
    damaged                     EngineError: a library was expected
    none, or of other sources   kernels are compiled, and `KernelTable.source` says why

    Where numba is missing, as in an image, a library that does not fit is an EngineError. Where
    there is none, and no target was asked for, the CPU's next best target that has one serves (a
    warning in the log and the self-test's result name it). A process that compiles with checks
    inside (`targets.compile_for(..., debug=True)`) uses no library.
    """
    chosen = targets.detect() if target is None else targets.runnable(target)
    if library is not None:
        return _prebuilt(chosen, library)
    if targets.debugging():
        return _compiled(chosen, "checks are compiled in")
    try:
        return _prebuilt(chosen)
    except EngineError as error:
        if error.code in ("kernel-damaged", "kernel-load"):
            raise
        if importlib.util.find_spec("numba") is None:
            if target is not None or error.code != "kernel-missing":
                raise
            return _next_best(chosen)
        if error.code != "kernel-missing":
            _log.warning("kernels are compiled on first use: %s", error.summary)
        return _compiled(chosen, error.summary)


def _next_best(best: targets.Target) -> KernelTable:
    """The library of another target that this CPU can run; EngineError says which it can run and
    which there are."""
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
