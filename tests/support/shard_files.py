"""Splits a GGUF file into shards, as `llama-gguf-split` does, and joins them by llama.cpp's own library. Shares no code
with the reader under test: the `gguf` package reads the whole file."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

from gguf import GGUFReader

from tests.support.fetch_llama_samplers import LIBRARY
from tests.support.ggufs import I32, U16, Tensor, build, kv


def name(stem: str, number: int, count: int) -> str:
    """The name of shard `number`, counted from 1."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def shards(data: bytes, count: int, folder: Path, stem: str = "m", *, bare_first: bool = False) -> list[Path]:
    """Write a GGUF file as `count` shards; their paths. `bare_first`: the first has no tensor, as with
    `--no-tensor-first-split`."""
    whole = folder / f"{stem}.whole"
    whole.write_bytes(data)
    reader = GGUFReader(whole)
    keys = [b"".join(part.tobytes() for part in field.parts) for key, field in reader.fields.items()
            if not key.startswith("GGUF.")]
    tensors = [Tensor(each.name, int(each.tensor_type), tuple(map(int, each.shape)), each.data.tobytes())
               for each in reader.tensors]
    del reader
    whole.unlink()
    parts = count - bare_first
    cuts = [len(tensors) * index // parts for index in range(parts + 1)]
    runs = [[]] * bare_first + [tensors[low:high] for low, high in itertools.pairwise(cuts)]
    found = []
    for number, run in enumerate(runs):
        said = [kv("split.no", U16, number), kv("split.count", U16, count),
                kv("split.tensors.count", I32, len(tensors))]
        found.append(folder / name(stem, number + 1, count))
        found[-1].write_bytes(build([*(keys if number == 0 else []), *said], run))
    return found


class _Init(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.POINTER(ctypes.c_void_p)))


def merged_header(paths: list[Path], target: Path) -> bytes:
    """The header that llama.cpp's library writes of these shards as one file, by the calls of `llama-gguf-split`."""
    library = ctypes.CDLL(str(LIBRARY))
    for call in ("gguf_init_empty", "gguf_init_from_file", "ggml_get_tensor"):
        getattr(library, call).restype = ctypes.c_void_p
    library.gguf_get_tensor_name.restype = ctypes.c_char_p
    library.gguf_get_n_tensors.restype = ctypes.c_int64
    whole = ctypes.c_void_p(library.gguf_init_empty())
    for number, path in enumerate(paths):
        held = ctypes.c_void_p()
        one = ctypes.c_void_p(library.gguf_init_from_file(str(path).encode(), _Init(True, ctypes.pointer(held))))
        if number == 0:
            library.gguf_set_val_u16(one, b"split.count", ctypes.c_uint16(0))
            library.gguf_set_kv(whole, one)
        for index in range(library.gguf_get_n_tensors(one)):
            named = library.gguf_get_tensor_name(one, ctypes.c_int64(index))
            library.gguf_add_tensor(whole, ctypes.c_void_p(library.ggml_get_tensor(held, named)))
    library.gguf_write_to_file(whole, str(target).encode(), ctypes.c_bool(True))
    return target.read_bytes()
