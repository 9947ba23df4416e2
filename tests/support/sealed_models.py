"""Small GGUF files to seal, with where their parts lie; and a key."""

from __future__ import annotations

from pathlib import Path

from appliance.sealing import sealing
from tests.support.ggufs import F32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.sealed_by_spec import Part

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TILE_SIZE = 4096
_ALIGN = 32


def data(nbytes: int, seed: int) -> bytes:
    """Bytes that never repeat within 64 KiB, none of them pairs of zeros."""
    return b"".join((seed * 40503 + at * 2654435761 & 0xFFFFFFFF | 0x01010101).to_bytes(4, "little")
                    for at in range(-(-nbytes // 4)))[:nbytes]


def small(seed: int = 1) -> bytes:
    """A file with a matrix of four tiles, a vector, and a tensor of two matrices."""
    keys = [kv("general.architecture", STRING, "llama"), kv("general.name", STRING, f"small {seed}"),
            kv_array("scores", F32, [0.0, -1.0])]
    tensors = [Tensor("token_embd.weight", 8, (64, 100), data(100 * 68, seed)),
               Tensor("norm.weight", 0, (9,), data(36, seed + 1)),
               Tensor("experts.weight", 0, (8, 5, 2), data(320, seed + 2))]
    return build(keys, tensors)


_SMALL = (("Q8_0", (100, 64), 6800), ("F32", (9,), 36), ("F32", (2, 5, 8), 320))
_EXPERTS = (("F32", (4, 64), 1024), ("Q8_0", (4, 80, 64), 21760), ("Q8_0", (4, 32, 64), 8704), ("F32", (4, 80), 1280))


def mixture(seed: int = 1) -> bytes:
    """A file with a router, runs of four experts, and their biases."""
    keys = [kv("general.architecture", STRING, "gpt-oss"), kv("gpt-oss.expert_count", U32, 4),
            kv("gpt-oss.expert_used_count", U32, 2)]
    names = ("gate_inp.weight", "gate_exps.weight", "down_exps.weight", "gate_exps.bias")
    return build(keys, [
        Tensor(f"blk.0.ffn_{name}", 8 if kind == "Q8_0" else 0, shape[::-1], data(size, seed + index))
        for index, (name, (kind, shape, size)) in enumerate(zip(names, _EXPERTS, strict=True))])


def mixture_parts(gguf: bytes) -> tuple[int, list[Part]]:
    """Size of the header and the parts of `mixture`."""
    return _parts(gguf, _EXPERTS)


def parts(gguf: bytes) -> tuple[int, list[Part]]:
    """Size of the header and the parts of `small`, as its writer lays them out."""
    return _parts(gguf, _SMALL)


def _parts(gguf: bytes, sizes: tuple[tuple[str, tuple[int, ...], int], ...]) -> tuple[int, list[Part]]:
    at = start = len(gguf) - sum(size + -size % _ALIGN for _, _, size in sizes)
    found = []
    for name, shape, size in sizes:
        found.append(Part(at, size, name, shape))
        at += size + -size % _ALIGN
    return start, found


def with_gaps(gguf: bytes) -> tuple[bytes, list[Part]]:
    """The same file with bytes that are not zero between two tensors and after the last, and all its parts."""
    _, tensors = parts(gguf)
    gap = tensors[0].offset + tensors[0].nbytes  # 16 bytes
    after = tensors[1].offset + tensors[1].nbytes
    out = bytearray(gguf) + b"appendix"
    out[gap:gap + 4] = b"\xde\xad\xbe\xef"
    return bytes(out), [
        tensors[0], Part(gap, tensors[1].offset - gap), tensors[1], Part(after, tensors[2].offset - after), tensors[2],
        Part(len(gguf), 8)]


def sealed(folder: Path, gguf: bytes, key: bytes = KEY, name: str = "m", tile_size: int = TILE_SIZE) -> Path:
    """Seal a file's bytes into `folder`."""
    source, target = folder / f"{name}.gguf", folder / f"{name}.sealed"
    source.write_bytes(gguf)
    target.unlink(missing_ok=True)
    sealing.seal(source, target, key, tile_size=tile_size)
    return target
