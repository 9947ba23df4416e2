"""A program that builds the demo image as another user, with another umask, from another checkout, into another folder,
in another year: SOURCE OUT CACHE CLOCK.so, with PYTHONPATH=SOURCE. It prints its user, umask and time.

The clock is loaded into this process by LD_PRELOAD, and into the tools that a build unpacks by their loader.
"""

from __future__ import annotations

import encodings
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import appliance.cli.image.image
import appliance.cli.main
from appliance.imaging import build, export
from appliance.imaging.disk import programs, toolchain
from appliance.imaging.recipe import recipe
from appliance.imaging.recipe.stages import Steps
from appliance.kernelbuild import cache as kernelcache
from appliance.policy import load

SOURCE, OUT, CACHE, CLOCK = map(Path, sys.argv[1:5])
os.umask(0o077)
os.chdir("/")
# This interpreter may be where others cannot read: everything is imported before it is another's.
for _name in ("importlib.readers", "zoneinfo", *(
        f"encodings.{module.name}" for module in pkgutil.iter_modules(encodings.__path__)
        if module.name not in ("mbcs", "oem"))):
    importlib.import_module(_name)

def with_clock(plain: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The command that runs a tool, with the clock loaded first."""
    def command(self: toolchain.Toolchain, program: str, *arguments: str) -> list[str]:
        loader, *rest = plain(self, program, *arguments)
        return [loader, "--preload", str(CLOCK), *rest]
    return command


def dated(tools: toolchain.Toolchain, source: Path) -> bytes:
    """Compile the init; before, see that the compiler lives in the same year."""
    example = OUT.parent / "dated.c"
    example.write_text("const char date[] = __DATE__;")
    said = tools.run(programs._COMPILER, "-quiet", str(example), "-o", "/dev/stdout")
    assert time.strftime("%Y") in said, said
    return COMPILE(tools, source)


assert str(build.__file__).startswith(str(SOURCE))
POLICY = SOURCE / "examples/demo.hcl"
LOADED = load(POLICY)
COMPILE = programs.compile_init
kernelcache.folder(CACHE)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
toolchain.Toolchain.command = with_clock(toolchain.Toolchain.command)
programs.compile_init = dated
export.GIB = 64 << 20
build.build(build.Options(recipe=recipe.load(SOURCE / "image"), output=OUT, cache=CACHE, policy=LOADED,
                          targets=("avx2",), exports=("qcow2", "vhd", "tar")), Steps())
for words in (["predict", OUT], ["sbom", OUT, "--policy", POLICY],
              ["container", OUT, "-o", OUT / "container.tar", "--cache", CACHE]):
    assert appliance.cli.main.main(["image", *map(str, words)]) == 0
print(os.getuid(), oct(os.umask(0)), int(time.time()))
