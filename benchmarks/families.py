"""Each family beside llama.cpp: `python -m benchmarks.families [NAME ...]`.

Makes a model of some 100 million random weights in Q4_K for each family, with the header that the
tests have for it. Both engines run it in this process on one thread, in turns: a prompt, then
single tokens after it. Times are the processor's, so that others on the machine matter less; with
more `--threads` they are elapsed times. A ratio is llama.cpp's time by ours: above 1 is faster.

llama.cpp is the library of the wheel that the tests use, with its own defaults. That build has AVX2
and no AVX-512, so `--target avx2` compares like with like. `--llama native` builds the pinned
release for this CPU instead, and `--llama avx2` for AVX2 alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli import numbers
from appliance.families.tensors import is_vector
from benchmarks import peer as peers
from benchmarks.models import Type, blocks
from benchmarks.own_server import Own
from tests.support import family_models, llama_models
from tests.support.ggufs import Tensor, build
from tests.support.llama_models import LlamaModel, _library

WIDTH, HEAD, LAYERS, HIDDEN, VOCABULARY, CONTEXT = 1024, 64, 8, 3072, 8192, 2048
PROMPT, TOKENS = 128, 16
PHI2 = {"embedding_length": 2560, "feed_forward_length": 10240, "block_count": 32, "attention.head_count": 32,
        "attention.head_count_kv": 32, "attention.key_length": 80, "attention.value_length": 80,
        "rope.dimension_count": 32, "context_length": CONTEXT, "vocab_size": 51200}

# Eight layers of Qwen3.5-4B.
QWEN35 = {"embedding_length": 2560, "feed_forward_length": 9216, "block_count": 8, "attention.head_count": 16,
          "attention.head_count_kv": 4, "attention.key_length": 256, "attention.value_length": 256,
          "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "rope.freq_base": 1e7,
          "full_attention_interval": 4, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
          "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "context_length": CONTEXT, "vocab_size": VOCABULARY}


def _header(name: str) -> dict[str, Any]:
    """The test model's own header with larger dimensions; a part of a head stays that part."""
    if name in ("phi2.own", "qwen35.own"):
        return PHI2 if name == "phi2.own" else QWEN35
    own = family_models.MODELS[name]
    heads = own.get("attention.head_count", 6)
    groups = own.get("attention.head_count_kv", 2)
    same = groups == heads
    size = own.get("attention.key_length", 32)
    found = {**own, "embedding_length": WIDTH, "feed_forward_length": HIDDEN, "context_length": CONTEXT,
             "vocab_size": VOCABULARY, "attention.head_count": WIDTH // HEAD, "attention.key_length": HEAD,
             "attention.value_length": HEAD, "attention.head_count_kv": WIDTH // HEAD if same else 4,
             "block_count": max(LAYERS, own.get("block_count", 0)) if name != "exaone4.windows" else LAYERS}
    if isinstance(groups, list):  # Gemma 4: six layers, two sizes
        found |= {"attention.head_count_kv": [4] * 5 + [2], "block_count": 6, "attention.key_length_swa": HEAD // 2,
                  "attention.value_length_swa": HEAD // 2, "rope.dimension_count_swa": HEAD // 2}
    if "rope.dimension_count" in own:
        found["rope.dimension_count"] = own["rope.dimension_count"] * HEAD // size
    if "rope.scaling.original_context_length" in own:
        found["rope.scaling.original_context_length"] = CONTEXT
    if "attention.sliding_window" in own:
        found["attention.sliding_window"] = 512
    return found


def make(name: str, work: Path, tokenizer: Sequence[bytes] = ()) -> Path:
    """Write the model of a family, or of FAMILY:TYPE, unless it is there. `tokenizer`: other keys
    than those of the tests' vocabulary."""
    name, _, only = name.partition(":")
    path = work / f"family-{name}{only and '-'}{only}.gguf"
    if path.exists():
        return path
    random = np.random.default_rng(1)
    tensors = []
    for tensor, shape in family_models._shapes(name).items():
        if is_vector(tensor, shape) or tensor == "position_embd.weight":
            values = family_models._vector(tensor, shape, random)
            tensors.append(Tensor(tensor, 0, shape[::-1], values.astype(np.float32).tobytes()))
            continue
        kind = Type[only.upper() or "Q4_K"] if shape[-1] % 256 == 0 else Type.Q8_0
        data = blocks(kind, math.prod(shape[:-1]), shape[-1], random)
        tensors.append(Tensor(tensor, int(kind), shape[::-1], data.tobytes()))
    keys = [family_models.header_key(key, value) for key, value in family_models.metadata(name).items()]
    work.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build([*keys, *(tokenizer or family_models.tokenizer_keys())], tensors))
    return path


def measure(path: Path, rounds: int, target: str | None = None, threads: int = 1) -> dict[str, Any]:
    """Time of both, in milliseconds: of a prompt's token, and of one after it; and the ratios. With
    one thread it is the processor's time, with more it is elapsed time. "of bandwidth" is the time
    in which the threads read the file from memory, by that of a token."""
    clock = time.process_time if threads == 1 else time.perf_counter

    def seconds(work: Callable[[], object]) -> float:
        begun = clock()
        work()
        return clock() - begun

    own, ids = Own(target), np.random.default_rng(2).integers(3, VOCABULARY, PROMPT).tolist()
    opened = own.open(str(path), threads, CONTEXT, 1)
    forward = own._forward
    assert forward is not None
    found: dict[str, list[float]] = {"own prefill": [], "own decode": [], "peer prefill": [], "peer decode": []}
    with LlamaModel(path, CONTEXT, family_models.VOCABULARY) as peer:
        _library().llama_set_n_threads(peer._context, *[ctypes.c_int32(threads)] * 2)

        def ours() -> None:
            forward.boundary.forget(0, 0)
            found["own prefill"].append(seconds(lambda: own._prompt(0, PROMPT, wanted=True)) / PROMPT)
            found["own decode"].append(seconds(lambda: [
                forward.run([7], [PROMPT + index], [0], [0]) for index in range(TOKENS)]) / TOKENS)

        def theirs() -> None:
            library = _library()
            library.llama_memory_clear(ctypes.c_void_p(library.llama_get_memory(peer._context)), True)
            found["peer prefill"].append(seconds(lambda: peer._next(ids)) / PROMPT)
            found["peer decode"].append(seconds(lambda: [peer._next([7]) for _ in range(TOKENS)]) / TOKENS)

        for turn in range(rounds + 1):
            for engine in ((ours, theirs) if turn % 2 else (theirs, ours)):
                engine()
            if turn == 0:  # pages come to memory
                for values in found.values():
                    values.clear()
    result: dict[str, Any] = {key: round(1000 * min(values), 3) for key, values in found.items()}
    result |= {"file": path.stat().st_size, "memory": opened["resident"] - opened["bare"]}
    bandwidth = max(own.limits(False)["bandwidth"] for _ in range(3))
    result["of bandwidth"] = round(1000 * result["file"] / bandwidth / result["own decode"], 2)
    for kind in ("prefill", "decode"):
        ratios = [theirs / ours for ours, theirs in zip(found[f"own {kind}"], found[f"peer {kind}"], strict=True)]
        result[kind] = {"median": round(statistics.median(ratios), 2), "of best": round(
            min(found[f"peer {kind}"]) / min(found[f"own {kind}"]), 2), "all": [round(ratio, 2) for ratio in ratios]}
    return result


def main() -> int:
    """Measure; 1 when some row is slower than llama.cpp's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="families of the tests' table, with :TYPE for "
                        "other blocks than Q4_K; or phi2.own alone, of phi-2's dimensions, or qwen35.own, eight layers "
                        "of Qwen3.5-4B; default: all")
    parser.add_argument("--rounds", type=numbers.whole(1, 1000), default=5, help="default: %(default)s")
    parser.add_argument("--target", help="our kernels' target, such as avx2: the wheel's library has no AVX-512")
    parser.add_argument("--threads", type=numbers.whole(1, 256), default=1,
                        help="of both; beyond one, times are elapsed times (default: %(default)s)")
    parser.add_argument("--llama", choices=("native", "avx2"), help="build llama.cpp for this CPU, or for AVX2, with "
                        "gcc; some minutes, once")
    parser.add_argument("--work", type=Path, default=Path("build/bench"))
    args = parser.parse_args()
    if args.llama:
        llama_models.LIBRARY = peers.build(args.work, "gcc", args.llama).library / "libllama.so"
    names = args.names or [name for name in family_models.MODELS if name != "granite.unturned"]
    for name in {name.partition(":")[0] for name in names}:
        family_models.MODELS[name] = _header(name)
        family_models.PUBLISHED.pop(name, None)
    family_models.VOCABULARY = 51200 if names == ["phi2.own"] else VOCABULARY
    results, slow = {}, False
    for name in names:
        results[name] = found = measure(make(name, args.work), args.rounds, args.target, args.threads)
        slow |= min(found[kind]["of best"] for kind in ("prefill", "decode")) < 1
        print(f"{name:<18}{json.dumps(found)}", flush=True)
    (args.work / "families.json").write_text(json.dumps(results, indent=2))
    return int(slow)


if __name__ == "__main__":
    raise SystemExit(main())
