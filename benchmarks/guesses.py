"""A model's own layer that guesses: `python -m benchmarks.guesses [--threads N] [--temperature T]`.

No trained model with such a layer is at hand. So this makes one of the shape of Qwen3.5-0.8B whose
next token is known, and whose layer guesses it as often as is set. All matrices are read as in a
real model, so times are those of such a model. How often a trained layer is right, on code or
prose, this cannot tell.

A token is always followed by the same other, in four circles of tokens. Outputs are embeddings in
another order, beside which layers add little. The layer that guesses has embeddings of its own. In
each circle a part of them is wrong, and so are the guesses after them. Text never repeats within
a measurement, so nothing is guessed from it.

With a temperature answers are sampled. The model is so sure of each token that they are the same:
what is measured is the cost of choosing. How often a guess is what a less sure model draws, it
cannot tell.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from appliance.cli import numbers
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.runtime import table
from benchmarks.models import Type, blocks
from tests.support.engines import opened
from tests.support.family_models import header_key
from tests.support.ggufs import F32, I32, STRING, U32, Tensor, build, kv, kv_array

WIDTH, LAYERS, HIDDEN, VOCABULARY, CONTEXT = 1024, 24, 3584, 248_320, 1024
QUERY, KEYS, MIXED, VALUES, HEADS = 2048, 512, 6144, 2048, 16
HEADER = {
    "block_count": LAYERS + 1, "nextn_predict_layers": 1, "embedding_length": WIDTH, "feed_forward_length": HIDDEN,
    "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 256,
    "attention.value_length": 256, "attention.layer_norm_rms_epsilon": 1e-6, "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0], "rope.freq_base": 1e7, "full_attention_interval": 4,
    "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": HEADS, "ssm.time_step_rank": HEADS,
    "ssm.inner_size": VALUES, "context_length": CONTEXT, "vocab_size": VOCABULARY}
RIGHT = (0.0, 0.5, 0.7, 0.9)  # share of right guesses in each circle
FIRST, CIRCLE = 512, 8000  # the first token of the first circle, and tokens of each
PROMPT, TOKENS = 64, 32


def _follower(token: int) -> int:
    """The token that follows another."""
    start = FIRST + (token - FIRST) // CIRCLE * CIRCLE
    return start + (token - start + 1) % CIRCLE


def _shapes(layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a layer."""
    yield "attn_norm.weight", (WIDTH,)
    yield "post_attention_norm.weight", (WIDTH,)
    if layer == LAYERS or (layer + 1) % 4 == 0:
        yield "attn_q.weight", (2 * QUERY, WIDTH)
        yield "attn_k.weight", (KEYS, WIDTH)
        yield "attn_v.weight", (KEYS, WIDTH)
        yield "attn_output.weight", (WIDTH, QUERY)
        yield from ((f"attn_{part}_norm.weight", (256,)) for part in "qk")
    else:
        yield "attn_qkv.weight", (MIXED, WIDTH)
        yield "attn_gate.weight", (VALUES, WIDTH)
        yield "ssm_conv1d.weight", (MIXED, 4)
        yield "ssm_dt.bias", (HEADS,)
        yield "ssm_a", (HEADS,)
        yield from ((f"ssm_{part}.weight", (HEADS, WIDTH)) for part in ("beta", "alpha"))
        yield "ssm_norm.weight", (128,)
        yield "ssm_out.weight", (WIDTH, VALUES)
    yield from ((f"ffn_{part}.weight", (HIDDEN, WIDTH)) for part in ("gate", "up"))
    yield "ffn_down.weight", (WIDTH, HIDDEN)


def _tensor(name: str, shape: tuple[int, ...], random: np.random.Generator) -> Tensor:
    """A tensor of a layer: random blocks, or numbers about those of trained models."""
    if len(shape) == 1 or "conv1d" in name:
        values = np.ones(shape) if "norm" in name else -np.exp(random.standard_normal(shape) - 1)
        values = random.standard_normal(shape) / 2 if "conv1d" in name else values
        return Tensor(name, 0, shape[::-1], values.astype(np.float32).tobytes())
    return Tensor(name, int(Type.Q4_K), shape[::-1], blocks(Type.Q4_K, *shape, random).tobytes())


def _rows(numbers_of: np.ndarray) -> bytes:
    """Rows of Q8_0 whose scale is 1, so that layers add little beside them."""
    packed = np.empty((len(numbers_of), WIDTH // 32, 34), np.uint8)
    packed[..., :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    packed[..., 2:] = numbers_of.reshape(-1, WIDTH // 32, 32).view(np.uint8)
    return packed.tobytes()


def _ends(random: np.random.Generator) -> Iterator[Tensor]:
    """The embeddings, the outputs, and what the layer that guesses has beside a layer."""
    known = random.integers(-127, 128, (VOCABULARY, WIDTH), np.int8)
    after, guessed = np.arange(VOCABULARY), known.copy()
    for circle, share in enumerate(RIGHT):
        tokens = np.arange(FIRST + circle * CIRCLE, FIRST + (circle + 1) * CIRCLE)
        after[np.roll(tokens, -1)] = tokens
        wrong = tokens[random.random(CIRCLE) >= share]
        guessed[wrong] = known[wrong + VOCABULARY // 2]
    name, dimensions = f"blk.{LAYERS}.nextn.", (WIDTH, VOCABULARY)
    yield Tensor("token_embd.weight", int(Type.Q8_0), dimensions, _rows(known))
    yield Tensor("output.weight", int(Type.Q8_0), dimensions, _rows(known[after]))
    yield Tensor(f"{name}embed_tokens.weight", int(Type.Q8_0), dimensions, _rows(guessed))
    join = 100 * np.eye(WIDTH, 2 * WIDTH, dtype=np.float32)
    yield Tensor(f"{name}eh_proj.weight", 1, (2 * WIDTH, WIDTH), join.astype(np.float16).tobytes())
    for tensor in ("output_norm.weight", *(f"{name}{part}.weight" for part in ("enorm", "hnorm", "shared_head_norm"))):
        yield Tensor(tensor, 0, (WIDTH,), np.ones(WIDTH, np.float32).tobytes())


def _tokenizer() -> list[bytes]:
    """A vocabulary in which each token is a word."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *(
        f"▁w{i}" for i in range(VOCABULARY - 259))]
    return [kv("tokenizer.ggml.model", STRING, "llama"), kv_array("tokenizer.ggml.tokens", STRING, tokens),
            kv_array("tokenizer.ggml.scores", F32, [0.0 - i for i in range(VOCABULARY)]),
            kv_array("tokenizer.ggml.token_type", I32, [2, 3, 3] + [6] * 256 + [1] * (VOCABULARY - 259)),
            kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
            kv("tokenizer.ggml.unknown_token_id", U32, 0)]


def make(path: Path) -> Path:
    """Write the model, unless it is there."""
    if not path.exists():
        random = np.random.default_rng(5)
        tensors = [*_ends(random), *(_tensor(f"blk.{layer}.{part}", shape, random) for layer in range(LAYERS + 1)
                                     for part, shape in _shapes(layer))]
        keys = [header_key(f"qwen35.{key}", value) for key, value in HEADER.items()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(build([header_key("general.architecture", "qwen35"), *keys, *_tokenizer()], tensors))
    return path


def _request(circle: int, number: int, tokens: int, temperature: float) -> GenerationRequest:
    """A request whose text walks along a circle."""
    text = [FIRST + circle * CIRCLE + 977 * number]
    while len(text) < PROMPT:
        text.append(_follower(text[-1]))
    return GenerationRequest(text, tokens, Sampling(temperature=temperature, seed=number), ignore_end=True)


def _follows(answer: list[int]) -> bool:
    """Whether an answer is what the model says."""
    return all(_follower(token) == after for token, after in itertools.pairwise(answer))


def measure(engine: Engine, circle: int, requests: int, tokens: int = TOKENS,
            temperature: float = 0.0) -> tuple[float, float]:
    """Tokens a second, and a pass of each answer, of so many answers at the same time, after their
    prompts. RuntimeError for an answer that the model does not give."""
    batcher = engine.acquire()
    try:
        running = [batcher.add(engine.generation(_request(circle, number, tokens, temperature)))
                   for number in range(requests)]
        while not all(each.generation.tokens for each in running):
            batcher.run()
        before, passes = sum(len(each.generation.tokens) for each in running), batcher.passes
        begun = time.perf_counter()
        while not any(each.generation.finished for each in running):
            batcher.run()
        seconds = time.perf_counter() - begun
        made = sum(len(each.generation.tokens) for each in running) - before
        if not all(_follows(each.generation.tokens) for each in running):
            raise RuntimeError("an answer is another one than the model's")
        return made / seconds, made / (batcher.passes - passes) / requests
    finally:
        engine.release()


def compare(path: Path, threads: int, requests: list[int], tokens: int,
            temperatures: list[float]) -> Iterator[dict[str, float]]:
    """A row for each number of requests, share of right guesses and temperature, each beside a
    measurement without guesses."""
    kernels = table.load()
    options = EngineOptions(threads=threads, slots=max(requests), context_length=CONTEXT, rows=64)
    with (opened(path.read_bytes(), guesses=True) as source,
          Engine.open(source, EngineOptions(**{**_fields(options), "speculate": False}), kernels=kernels) as plain,
          Engine.open(source, EngineOptions(**{**_fields(options), "heads": True}), kernels=kernels) as guessing):
        for count in requests:
            measure(plain, 0, count)
            measure(guessing, 0, count)
            for (circle, share), temperature in itertools.product(enumerate(RIGHT), temperatures):
                base = measure(plain, circle, count, tokens, temperature)[0]
                rate, each = measure(guessing, circle, count, tokens, temperature)
                yield {"requests": count, "right": share, "temperature": temperature, "tokens a pass": round(each, 2),
                       "tokens a second": round(rate, 2), "without": round(base, 2), "ratio": round(rate / base, 3)}


def _fields(options: EngineOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in EngineOptions.__dataclass_fields__}


def main() -> None:
    """Print a row for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("build/bench"), help="the folder of the model")
    parser.add_argument("--threads", type=numbers.whole(1, 256), default=2)
    parser.add_argument("--requests", type=numbers.whole(1, 64), nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=numbers.whole(2, 900), default=TOKENS, help="of each answer")
    parser.add_argument("--temperature", type=numbers.decimal(0, 100), nargs="+", default=[0.0],
                        help="0, the default, is greedy")
    parser.add_argument("--make", action="store_true", help="only make the model")
    given = parser.parse_args()
    path = make(given.work / "guesses-qwen35.gguf")
    if not given.make:
        for row in compare(path, given.threads, given.requests, given.tokens, given.temperature):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
