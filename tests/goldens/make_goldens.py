"""Ask llama.cpp, and keep what it answers: `tests/goldens/*.npz`. Run by hand, from the repository's root:

    .venv/bin/pip install llama-cpp-python==0.3.36
    OPENBLAS_NUM_THREADS=1 .venv/bin/python -m tests.goldens.make_goldens [demo] [synthetic] [absent]

`absent` makes those of synthetic models that have none yet, by the library of llama.cpp that the tests have.

The demo model is expected in build/models (`make` fetches it), or where APPLIANCE_DEMO_MODEL says. Prints, for each
model, how often two of llama.cpp's logits are close and its mean KL divergence from the float32 reference.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.goldens.prompts import PROMPTS
from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.golden_files import FOLDER, LIKELY, Golden, bucketed_divergence
from tests.support.llama_models import LlamaModel
from tests.support.reference_model import ReferenceModel, divergence, log_softmax

Floats = NDArray[np.float32]
CONTINUATION = {"demo": 48, "synthetic": 32}  # tokens


class Peer:
    """llama.cpp with one model."""

    def __init__(self, path: Path) -> None:
        import llama_cpp  # `absent` does without

        self._cpp: Any = llama_cpp
        self._llama = llama_cpp.Llama(str(path), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)

    def tokenise(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens of its template recognised."""
        return list(self._llama.tokenize(text.encode(), add_bos=True, special=True))

    def continuation(self, ids: list[int], count: int) -> tuple[list[int], Floats]:
        """Greedy choices, up to `count` or the end of generation, and the logits (choices, vocabulary) behind them."""
        self._llama.reset()
        feed, choices, rows = ids, [], []
        while True:
            self._llama.eval(feed)
            row = self._cpp.llama_get_logits_ith(self._llama.ctx, -1)
            rows.append(np.ctypeslib.as_array(row, (self._llama.n_vocab(),)).copy())
            choices.append(int(rows[-1].argmax()))
            vocabulary = self._cpp.llama_model_get_vocab(self._llama.model)
            if len(choices) == count or self._cpp.llama_vocab_is_eog(vocabulary, choices[-1]):
                return choices, np.array(rows)
            feed = choices[-1:]


class Library:
    """The library of the tests with one synthetic model."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def continuation(self, ids: list[int], count: int) -> tuple[list[int], Floats]:
        """Greedy choices, and the logits behind them."""
        with LlamaModel(self._path, 1024, synthetic.VOCAB) as model:
            return model.greedy(ids, count)


def golden(data: bytes, peer: Peer | Library, ids: list[list[int]], count: int, *, keep: bool = False) -> Golden:
    """llama.cpp's answers and the reference's. `keep`: the reference's likeliest tokens, too."""
    reference = ReferenceModel(data)
    continuations, tops, divergences, likely, logs = [], [], [], [], []
    for prompt in ids:
        choices, rows = peer.continuation(prompt, count)
        exact = reference.logits(prompt + choices[:-1], len(choices))
        continuations.append(choices)
        tops.append(-np.sort(-rows, axis=-1)[:, :2])
        if keep:
            likely.append(np.argsort(-exact, axis=-1, kind="stable")[:, :LIKELY].astype(np.uint16))
            logs.append(np.take_along_axis(log_softmax(exact), likely[-1].astype(int), -1).astype(np.float32))
            whole, bucketed = divergence(exact, rows).mean(), bucketed_divergence(likely[-1], logs[-1], rows).mean()
            print(f"  {len(prompt):4} tokens, {len(choices):2} choices, KL {whole:.6f}, bucketed {bucketed:.6f}",
                  flush=True)
            divergences.append(bucketed_divergence(likely[-1], logs[-1], rows))
        else:
            divergences.append(divergence(exact, rows))
    return Golden(hashlib.sha256(data).hexdigest(), ids, continuations, np.concatenate(tops).astype(np.float32),
                  np.concatenate(divergences).astype(np.float32), np.concatenate(likely) if keep else None,
                  np.concatenate(logs) if keep else None)


def _report(name: str, found: Golden) -> None:
    gaps = found.top[:, 0] - found.top[:, 1]
    shares = ", ".join(f">{gap}: {(gaps > gap).mean():.0%}" for gap in (0.2, 0.5, 1.0))
    print(f"{name}: {len(gaps)} positions, gaps {shares}, mean KL {found.kl.mean():.7f}", flush=True)


def _synthetic(peer: type[Peer | Library], kept: Collection[str] = ()) -> Iterator[tuple[str, Golden]]:
    """Every variant that llama.cpp runs, but those that are kept: it has no Q8_1 weights."""
    for variant in synthetic.VARIANTS.values():
        if variant.format != "Q8_1" and variant.name not in kept:
            data = synthetic.model(variant)
            with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
                file.write(data)
                file.flush()
                yield variant.name, golden(data, peer(Path(file.name)), synthetic.prompts(), CONTINUATION["synthetic"])


def _demo() -> Iterator[tuple[str, Golden]]:
    path = demo_model()
    peer = Peer(path)
    ids = [peer.tokenise(text) for text in PROMPTS]
    yield "demo", golden(path.read_bytes(), peer, ids, CONTINUATION["demo"], keep=True)


def _absent() -> None:
    with np.load(FOLDER / "synthetic.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    for variant, found in _synthetic(Library, {key.partition("/")[0] for key in arrays}):
        _report(variant, found)
        arrays |= found.arrays(variant)
    np.savez_compressed(FOLDER / "synthetic.npz", **arrays)


def main() -> None:
    """Make the goldens named on the command line, or all."""
    for name in sys.argv[1:] or ["demo", "synthetic"]:
        if name == "absent":
            _absent()
            continue
        began, arrays = time.monotonic(), {}
        for variant, found in _synthetic(Peer) if name == "synthetic" else _demo():
            _report(variant, found)
            arrays |= found.arrays(variant)
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
        size = (FOLDER / f"{name}.npz").stat().st_size
        print(f"{name}.npz: {size:,} bytes in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
