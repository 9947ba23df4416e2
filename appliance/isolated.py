"""Start a verb again in an interpreter that takes nothing from its surroundings but what is named
here.

The operator's shell reaches a Python process in many ways: variables that load code, `.pth` files,
`sitecustomize`, the working directory, cached bytecode that says something else than its source.
The image has none of them. Elsewhere `again` replaces the process by one without them:

    variables       KEPT alone; all others are handed over as data, which only `lookup` reads
    import path     the standard library, the site-packages folders and this package's folder; no `.pth` file is read
    modules         sources and extension modules; bytecode only where the whole root is read-only, as in the image

As a script this file is the first that the new interpreter runs. It needs the standard library
alone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import json
import os
import re
import sys
from pathlib import Path

VERBS = ("serve", "infer")  # they hold prompts and models' keys
KEPT = {"TERM": re.compile(r"[A-Za-z0-9.+-]{1,64}"), "NO_COLOR": re.compile(r"[A-Za-z0-9]{1,8}")}
# The C library's caches of freed memory, one a thread, would keep it as it was: secure/residue.py.
SET = {"LANG": "C.UTF-8", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
OWN = ("KMP_AFFINITY", "OPENBLAS_NUM_THREADS")  # set by this package for libraries that it loads
NO_CACHE = "/dev/null"  # nothing is ever found below a device
CUSTOM = ("sitecustomize", "usercustomize")
PACKAGE = Path(__file__).parent
_FD, _NONE = "appliance-environment", "-"

_given: dict[str, bytearray] = {}  # variables that were taken out of the environment
_begun: list[str] = []  # entries that `begin` called in this process: one, in an isolated one


def again(words: list[str]) -> None:
    """Replace this process by an isolated one, if the words name a verb that needs it. Returns
    where it is isolated, where Python's own hooks watch it, and where the machine does not let it:
    `problems` then says why. It is done once: what is left after it would be left again."""
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS or sys.platform != "linux" or not sys.executable or watched() or _begun:
        return
    if not problems() and dict(os.environ) == _environment():
        return
    import fcntl  # Windows has none, nor what needs it

    with contextlib.suppress(OSError):
        made = os.memfd_create(_FD)
        handed = fcntl.fcntl(made, fcntl.F_DUPFD, 3)  # inherited; 0 to 2 may be closed, and stay so
        os.close(made)
        with os.fdopen(os.dup(handed), "wb") as file:
            file.write(json.dumps(dict(os.environ)).encode())
        os.execve(sys.executable, command("appliance.__main__:start", words, handed), _environment())  # noqa: S606


def command(entry: str, words: list[str] | None = None, handed: int | None = None) -> list[str]:
    """The command line that calls a function, `module:function`, in an isolated interpreter.
    `handed`: the descriptor of a file that has the environment's variables."""
    import site  # in an isolated interpreter nothing else loads it

    flags = ["-I", "-B", "-X", "utf8"]
    if not _measured():
        flags += ["-S", "-X", f"pycache_prefix={NO_CACHE}"]
    folders = [folder for folder in (*site.getsitepackages([sys.prefix]), *site.getsitepackages([sys.base_prefix]))
               if Path(folder).is_dir() and (sys.prefix == sys.base_prefix or folder.startswith(f"{sys.prefix}/"))]
    path = json.dumps([*dict.fromkeys(folders), str(PACKAGE.parent)])
    return [sys.executable, *flags, str(PACKAGE / "isolated.py"), _NONE if handed is None else str(handed), sys.prefix,
            path, entry, *(words or [])]


def problems() -> list[str]:
    """The operator's surroundings that reach this process; none where it is isolated."""
    flags, found = sys.flags, []
    if not (flags.isolated and flags.dont_write_bytecode):
        found.append("the interpreter was started without -I -B")
    if not flags.no_site and not _measured():
        found.append("the interpreter was started without -S, so code in .pth files may have run")
    if sys.pycache_prefix != NO_CACHE and not _measured():
        found.append("cached bytecode is in use")
    found += [f"{name} was loaded" for name in CUSTOM if name in sys.modules]
    found += [f"{name} does not come from its source" for name in _foreign_modules()]
    return found


def watched() -> str:
    """Why Python's own hooks watch this process; empty if none does."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [] if monitoring is None else [tool for tool in map(monitoring.get_tool, range(6)) if tool is not None]
    hooked = sys.gettrace() is not None or sys.getprofile() is not None or bool(tools)
    return "a Python trace or profile function is set" if hooked else ""


def lookup(name: str) -> bytearray | None:
    """A copy of a variable that this process was started with; the caller wipes it."""
    if name in _given:
        return bytearray(_given[name])
    value = os.environb.get(os.fsencode(name))
    return None if value is None else bytearray(value)


def names() -> list[str]:
    """The variables that were taken out of the environment, sorted."""
    return sorted(_given)


def take_out() -> list[str]:
    """Take every variable out of the environment that is not kept: only `lookup` has it then.
    Returns their names."""
    ours = {name for name, value in SET.items() if os.environ.get(name) == value}
    for name in set(os.environ) - {*KEPT, *OWN, *ours}:
        _given[name] = bytearray(os.environb[os.fsencode(name)])
        del os.environ[name]
    return names()


def forget(name: str | None = None) -> None:
    """Wipe one of the variables that were taken out, or all, and remove it from the environment."""
    for each in [name] if name is not None else names():
        value = _given.pop(each, None)
        if value is not None:
            value[:] = bytes(len(value))
        os.environ.pop(each, None)


def _measured() -> bool:
    """Whether the modules' folder cannot be written, and is no virtual environment's: so it is in
    the image, where bytecode is part of what is measured."""
    try:
        return sys.prefix == sys.base_prefix and bool(os.statvfs(PACKAGE).f_flag & os.ST_RDONLY)
    except (OSError, AttributeError):
        return False


def _foreign_modules() -> list[str]:
    """Modules of this package that anything but a source file of this folder defines."""
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name.partition(".")[0] != "appliance" or spec is None:
            continue
        plain = isinstance(spec.loader, importlib.machinery.SourceFileLoader) and spec.origin is not None
        if not plain or not Path(spec.origin or "").is_relative_to(PACKAGE):
            found.append(name)
    return sorted(found)


def _environment() -> dict[str, str]:
    """The environment of an isolated process."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**SET, **{name: value for name, value in kept.items() if KEPT[name].fullmatch(value)}}


def _take_over(descriptor: str) -> None:
    """Read the variables that the process before this one was started with."""
    if descriptor == _NONE:
        return
    with os.fdopen(int(descriptor), "rb") as file:
        file.seek(0)
        for name, value in json.loads(file.read()).items():
            _given[name] = bytearray(os.fsencode(value))


def _only_sources() -> None:
    """Import no bytecode without its source, nothing from archives, and of this package nothing but
    sources."""
    sources = (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES)
    extensions = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    ours = importlib.machinery.FileFinder.path_hook(sources)
    others = importlib.machinery.FileFinder.path_hook(extensions, sources)
    sys.path_hooks[:] = [lambda folder: (ours if Path(folder).is_relative_to(PACKAGE) else others)(folder)]
    sys.path_importer_cache.clear()


def begin(descriptor: str, prefix: str, path: str, entry: str, *words: str) -> None:
    """Set the interpreter up as its command line says, and call the entry."""
    sys.prefix = sys.exec_prefix = prefix  # as `site` does; `sysconfig` reads it when it is first imported
    sys.path += [folder for folder in json.loads(path) if folder not in sys.path]
    _only_sources()
    sys.argv = ["appliance", *words]
    ours = importlib.import_module("appliance.isolated")
    ours._take_over(descriptor)
    ours._begun.append(entry)
    module, _, function = entry.partition(":")
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    begin(*sys.argv[1:])
