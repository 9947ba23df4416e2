"""Answers of llama.cpp in small files, and the measure of an engine's answers against them.

A golden belongs to one model file (by SHA-256). For each prompt it has llama.cpp's greedy continuation and, at each
of its positions, llama.cpp's two largest logits and its KL divergence from the float32 reference. Where the reference
is too slow to run in a test, its most likely tokens are kept with it (`likely`, `logs`); divergence is then measured
over those tokens and one bucket for all the others, on both sides of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.reference_model import divergence, log_softmax

FOLDER = Path(__file__).parents[1] / "goldens"
LIKELY = 32  # tokens of the reference kept per position

Floats = NDArray[np.float32]


@dataclass
class Golden:
    """One model's answers; positions of all prompts in one run."""

    sha256: str
    prompts: list[list[int]]
    continuations: list[list[int]]
    top: Floats  # (positions, 2): llama.cpp's largest logit and the next
    kl: Floats  # (positions,): of llama.cpp from the reference, in nats
    likely: NDArray[np.uint16] | None = None  # (positions, LIKELY)
    logs: Floats | None = None  # (positions, LIKELY): the reference's log probabilities

    def cases(self) -> Iterator[tuple[list[int], list[int], slice]]:
        """For each prompt: the tokens to feed, llama.cpp's choices after the last of them, their positions."""
        start = 0
        for prompt, continuation in zip(self.prompts, self.continuations, strict=True):
            positions = slice(start, start + len(continuation))
            yield prompt + continuation[:-1], continuation, positions
            start = positions.stop

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """As arrays to save; prompts only where `likely` is kept (others are made from a seed)."""
        found: dict[str, NDArray[Any]] = {
            "sha256": np.array(self.sha256), "kl": self.kl, "top": self.top,
            "lengths": np.array([len(each) for each in self.continuations], np.uint16),
            "choices": np.concatenate(self.continuations).astype(np.uint16),
        }
        if self.likely is not None and self.logs is not None:
            found |= {"likely": self.likely, "logs": self.logs,
                      "prompts": np.concatenate(self.prompts).astype(np.uint16),
                      "prompt_lengths": np.array([len(each) for each in self.prompts], np.uint16)}
        return {f"{prefix}/{key}": value for key, value in found.items()}


def _cut(flat: NDArray[Any], lengths: NDArray[Any]) -> list[list[int]]:
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths.astype(int))[:-1])]


def load(name: str, prefix: str, prompts: list[list[int]] | None = None) -> Golden:
    """The golden `prefix` of the file `name`; prompts are given where the file does not keep them."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        part = {key.removeprefix(f"{prefix}/"): file[key] for key in file.files if key.startswith(f"{prefix}/")}
    kept = prompts if prompts is not None else _cut(part["prompts"], part["prompt_lengths"])
    return Golden(str(part["sha256"]), kept, _cut(part["choices"], part["lengths"]), part["top"], part["kl"],
                  part.get("likely"), part.get("logs"))


def bucketed_divergence(likely: NDArray[np.uint16], logs: Floats, logits: Floats) -> NDArray[np.float64]:
    """KL divergence (positions,) from a reference of which only `likely` is known, the rest being one bucket."""
    p = logs.astype(np.float64)
    q = np.take_along_axis(log_softmax(logits), likely.astype(np.int64), axis=-1)
    rest_p, rest_q = (np.log(np.maximum(1 - np.exp(each).sum(axis=-1), 1e-9)) for each in (p, q))
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1) + np.exp(rest_p) * (rest_p - rest_q))


@dataclass
class Score:
    """How an engine does against a golden."""

    positions: int
    agreement: dict[float, tuple[int, int]]  # gap of llama.cpp's logits -> (positions above it, choices that agree)
    kl: float  # mean, of the engine from the reference
    peer_kl: float  # mean, of llama.cpp from the reference

    def failures(self) -> list[str]:
        """Name each bound that is missed: on choices that must agree, and on the divergence."""
        needed = {0.2: 0.99, 0.5: 0.999, 1.0: 1.0}
        found = [f"{agreeing} of {above} choices agree where the gap is above {gap}; needed: {needed[gap]:.1%}"
                 for gap, (above, agreeing) in self.agreement.items() if agreeing < needed[gap] * above]
        allowed = max(1.2 * self.peer_kl, 1e-4)
        if not self.kl <= allowed:
            found.append(f"mean KL {self.kl:.6f}; allowed: {allowed:.6f} (llama.cpp: {self.peer_kl:.6f})")
        return found


def score(golden: Golden, logits: Callable[[Sequence[int], int], Floats],
          reference: Callable[[Sequence[int], int], Floats] | None = None,
          choices: list[list[int]] | None = None) -> Score:
    """Measure `logits(ids, last)`, the logits after each of the last `last` tokens, against a golden. The divergence
    is from `reference`, called alike, or from what the golden keeps of it. The choices to agree with are those of
    the continuation unless given."""
    agreeing, divergences = [], []
    for number, (ids, continuation, positions) in enumerate(golden.cases()):
        found = logits(ids, len(continuation))
        wanted = continuation if choices is None else choices[number]
        agreeing.append(found.argmax(axis=-1) == np.array(wanted))
        if reference is not None:
            divergences.append(divergence(reference(ids, len(continuation)), found))
        elif golden.likely is not None and golden.logs is not None:
            divergences.append(bucketed_divergence(golden.likely[positions], golden.logs[positions], found))
    agree = np.concatenate(agreeing)
    gaps = golden.top[:, 0] - golden.top[:, 1]
    agreement = {gap: (int((gaps > gap).sum()), int(agree[gaps > gap].sum())) for gap in (0.2, 0.5, 1.0)}
    return Score(len(agree), agreement, float(np.concatenate(divergences).mean()), float(golden.kl.mean()))
