"""Build the kernel library of a target: compile in worker processes, link, check, write library and
manifest.

Each worker is this module run as a program (`python -m appliance.kernelbuild.build TARGET FOLDER`):
it reads kernel names, one a line, writes `FOLDER/<name>.o` and answers with one line of JSON. A
process compiles for one target, so targets other than this CPU's are no special case; for those of
another architecture, binutils has a linker apart.

The bytes of a library depend on the sources, numba, llvmlite, the linker, and the minor version of
CPython, whose bytecode numba compiles. They do not depend on the folder, the CPU, the architecture,
the number of workers, or the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import EngineError
from appliance.kernelbuild import sharedobject
from appliance.kernels.compiler.registry import ALLOWED_SYMBOLS
from appliance.kernels.compiler.sources import all_sources, loaded_sources
from appliance.kernels.runtime import ahead, targets

Progress = Callable[[int, int, str], None]
"""Called with kernels done, kernels in all, and the name of the last one."""

_ROOT = Path(__file__).parents[2]
_LIST = "?"  # asks a worker for all names and signatures
_LINK = ("-shared", "-z", "relro", "-z", "now", "-z", "noexecstack", "-z", "separate-code", "--hash-style=gnu",
         "--build-id=none", "--strip-all")


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    target: str
    library: Path
    manifest: Path
    kernels: int
    nbytes: int


def python_version() -> str:
    """CPython's minor version, such as "3.13"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


class _Worker:
    """One compiling process."""

    def __init__(self, target: str, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "PYTHON"))}
        environment |= {"PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-P", "-m", "appliance.kernelbuild.build", target, str(folder)]
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._target = target

    def ask(self, name: str) -> Any:
        """Compile one kernel (or list all). Raises EngineError with the worker's reason."""
        if self._process.stdin is None or self._process.stdout is None:
            raise EngineError("a compiling process has no pipes")
        try:
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (BrokenPipeError, ValueError):  # it has ended, or a signal closed its pipes while another thread asks
            line = ""
        if not line:
            raise self._ended(name)
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{name} for {self._target}: {answer['error']}", code="kernel-build")
        return answer

    def _ended(self, name: str) -> EngineError:
        """Return the error about a process that has ended, with the signal if one ended it."""
        code = self._process.wait()
        if code in (-signal.SIGKILL, -signal.SIGXCPU):
            hint = "a limit of memory or time ends a process so: free some, or give fewer --jobs"
        else:
            hint = "its messages are above; LLVM ends a process that misses a feature or a symbol"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return EngineError(f"compiling {name} for {self._target} ended the process {how}", code="kernel-build",
                           hint=hint)

    def close(self) -> None:
        """Let the process end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()


def build(target: targets.Target, folder: Path, *, names: Collection[str] | None = None, jobs: int | None = None,
          progress: Progress = lambda done, total, name: None, linker: Sequence[str] | None = None) -> Built:
    """Compile kernels (`names`, or every one) for a target; write `kernels-<target>.so` and `.json`
    into a folder.

    `jobs` processes compile (one for each CPU by default); `linker` is a command (binutils' by
    default). Raises EngineError, which names the kernel, symbol, tool or folder at fault.
    """
    linker, count = linker or [_linker(target)], len(os.sched_getaffinity(0)) if jobs is None else jobs
    if count < 1:
        raise EngineError(f"{count} compiling processes", hint="one or more", code="kernel-jobs")
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    before = ahead.source_digests(all_sources())
    with tempfile.TemporaryDirectory(prefix="kernels-") as scratch:
        objects = Path(scratch)
        workers = [_Worker(target.name, objects) for _ in range(count)]
        signatures, sources = _compile(workers, names, progress)
        data = _link(linker, target, objects, sorted(signatures))
    _check(data, set(signatures))
    digests = ahead.source_digests(sorted(sources))
    changed = [name for name, digest in digests.items() if before.get(name) != digest]
    if changed:
        raise EngineError(f"{', '.join(changed)} changed while kernels were compiled", hint="build again",
                          code="kernel-stale")
    library = ahead.default_path(target, folder)
    document = {
        "schema": ahead.SCHEMA, "target": target.name, "machine": target.machine, "llvm_cpu": target.llvm_cpu,
        "llvm_features": target.llvm_features, "sha256": hashlib.sha256(data).hexdigest(),
        "compilers": ahead.compiler_versions(), "python": python_version(), "sources": digests,
        "kernels": dict(sorted(signatures.items())),
    }
    manifest = library.with_suffix(".json")
    with _writing(folder):
        _replace(library, data)
        _replace(manifest, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
    return Built(target.name, library, manifest, len(signatures), len(data))


def _linker(target: targets.Target) -> str:
    """binutils' linker: this machine's own, or Debian's for another architecture."""
    name, package = "ld", "binutils"
    if target.foreign:
        name, package = f"{target.machine}-linux-gnu-ld", f"binutils-{target.machine}-linux-gnu"
    found = shutil.which(name)
    if found is None:
        raise EngineError(f"the linker `{name}` is not installed", hint=f"install {package}", code="linker-missing")
    return found


def _compile(workers: list[_Worker], wanted: Collection[str] | None,
             progress: Progress) -> tuple[dict[str, str], set[str]]:
    """Compile kernels, each in the next free worker; their signatures, and the source files that
    were loaded."""
    sources: set[str] = set()
    errors: list[EngineError] = []
    try:
        signatures: dict[str, str] = workers[0].ask(_LIST)["kernels"]
        if wanted is not None:
            signatures = {name: signatures[name] for name in wanted}
        names: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in signatures:
            names.put(name)
        done = iter(range(1, len(signatures) + 1))

        def serve(worker: _Worker) -> None:
            while not errors:
                try:
                    name = names.get_nowait()
                    sources.update(worker.ask(name)["sources"])
                except queue.Empty:
                    return
                except EngineError as error:
                    errors.append(error)
                    return
                progress(next(done), len(signatures), name)

        threads = [threading.Thread(target=serve, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            worker.close()
    if errors:
        raise errors[0]
    return signatures, sources


def _link(linker: Sequence[str], target: targets.Target, objects: Path, names: list[str]) -> bytes:
    library = ahead.default_path(target, Path()).name
    (objects / "list").write_text("".join(f"{name}.o\n" for name in names))
    done = subprocess.run(  # noqa: S603
        [*linker, *_LINK, "-soname", library, "-o", library, "@list"], cwd=objects, capture_output=True, text=True,
        check=False, env={"LC_ALL": "C"})
    if done.returncode != 0:
        raise EngineError(f"linking kernels failed: {done.stderr.strip()[:2000]}", code="kernel-link")
    return (objects / library).read_bytes()


def _check(data: bytes, names: set[str]) -> None:
    """Refuse a library that offers, needs or asks for anything but what was meant."""
    found = sharedobject.parse(data)
    wanted = {ahead.PREFIX + name for name in names}
    outside = found.undefined - ALLOWED_SYMBOLS
    faults = [f"offers {sorted(found.defined ^ wanted)}"] if found.defined != wanted else []
    faults += [f"needs {', '.join(sorted(outside))}"] if outside else []
    faults += ["has writable code"] if found.writable_code else []
    faults += ["runs code at load"] if found.runs_at_load or found.needs_libraries else []
    faults += ["does not bind at load"] if not found.binds_now else []
    if faults:
        raise EngineError(f"the linked kernel library {'; '.join(faults)}", code="kernel-link")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{folder} cannot be written: {error.strerror}", hint="name another with -o",
                          code="kernel-output") from error


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a process that has the old one mapped keeps it. The new one has a name
    that nobody else has: two may build at once, and no link leads elsewhere."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as file:
            file.write(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def work(target: str, folder: Path) -> None:
    """A worker's life: names on standard input, one line of JSON each on standard output."""
    targets.compile_for(target)
    from appliance.kernels.compiler import lower, registry

    kernels = registry.definitions()
    for line in sys.stdin:
        name = line.strip()
        answer: dict[str, Any]
        try:
            if name == _LIST:
                answer = {"kernels": {key: str(kernel.signature) for key, kernel in kernels.items()}}
            else:
                (folder / f"{name}.o").write_bytes(lower.lower(kernels[name]))
                answer = {"sources": loaded_sources()}
        except EngineError as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  numba's own errors are many; the text is what helps
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
