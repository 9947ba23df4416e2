"""The kernel of the boot packages: its image, its release, and modules in the order in which they
must be loaded."""

from __future__ import annotations

import lzma
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ImageError


@dataclass(frozen=True)
class Kernel:
    """A kernel, with the modules for the initrd."""

    release: str
    image: bytes
    required: tuple[tuple[str, bytes], ...]  # (name, module) in load order
    optional: tuple[tuple[str, bytes], ...]


def read(root: Path, required: tuple[str, ...], optional: tuple[str, ...]) -> Kernel:
    """Return the one kernel below `root`. Raises ImageError if there is none, or a module is
    missing."""
    images = sorted((root / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise ImageError(f"{len(images)} kernels in the boot packages, expected one")
    release = images[0].name.removeprefix("vmlinuz-")
    modules = _Modules(root / "usr/lib/modules" / release)
    first = modules.order(required)
    return Kernel(release, images[0].read_bytes(), first, modules.order(optional))


class _Modules:
    """Modules of a release; each is given out once."""

    def __init__(self, folder: Path) -> None:
        self._paths = {_name(path.name.split(".ko")[0]): path for path in folder.rglob("*.ko.xz")}
        builtin = folder / "modules.builtin"
        lines = builtin.read_text(encoding="ascii").split() if builtin.is_file() else []
        self._builtin = {_name(line.rpartition("/")[2].removesuffix(".ko")) for line in lines}
        self._given: set[str] = set()

    def order(self, names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
        """These modules, each after what it depends on, without those given out before."""
        out: list[tuple[str, bytes]] = []
        for name in names:
            self._visit(_name(name), out)
        return tuple(out)

    def _visit(self, name: str, out: list[tuple[str, bytes]]) -> None:
        if name in self._given or name in self._builtin:
            return
        if name not in self._paths:
            raise ImageError(f"kernel module {name} is in no boot package", hint="correct image/modules.toml")
        self._given.add(name)
        data = lzma.decompress(self._paths[name].read_bytes())
        hard, soft = _dependencies(data)
        for needed in [*hard, *(name for name in soft if _name(name) in self._paths)]:
            self._visit(_name(needed), out)
        out.append((name, data))


def _name(text: str) -> str:
    return text.replace("-", "_")


def _dependencies(module: bytes) -> tuple[list[str], list[str]]:
    """`depends` and `softdep: pre` of a module's .modinfo, which are NUL-ended KEY=VALUE strings.
    """
    hard: list[str] = []
    soft: list[str] = []
    for key, value in re.findall(rb"(?<=\0)(depends|softdep)=([^\0]*)(?=\0)", module):
        text = value.decode("ascii")
        if key == b"depends":
            hard += [name for name in text.split(",") if name]
        elif text.startswith("pre:"):
            soft += text.removeprefix("pre:").split("post:")[0].split()
    return hard, soft
