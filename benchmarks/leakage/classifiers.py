"""Two classifiers, in an environment of their own.

    python -m benchmarks.leakage.classifiers TABLES OUT

TABLES holds for each cell rows, sequences, secrets, and one half of the trials. Each classifier
learns on one half and answers for the other, in turns. OUT gets the probabilities that both give.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MANY = 1000  # trials to learn from, of which some can be spared to tell when to stop


def trees(learned: Floats, secrets: NDArray[np.bool_], others: Floats) -> Floats:
    """Return what gradient-boosted trees say."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    many = len(secrets) >= MANY
    model = HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.08, max_leaf_nodes=15, l2_regularization=1.0, random_state=1,
        min_samples_leaf=20 if many else 4, early_stopping=many)
    model.fit(learned, secrets)
    return np.asarray(model.predict_proba(others)[:, 1])


def network(learned: Floats, secrets: NDArray[np.bool_], others: Floats) -> Floats:
    """Return what a small network says, by the sequence of gaps and sizes."""
    from sklearn.neural_network import MLPClassifier

    middle, spread = learned.mean(axis=0), learned.std(axis=0) + 1e-9
    model = MLPClassifier((64, 32), early_stopping=len(secrets) >= MANY, max_iter=80, alpha=1e-3, random_state=1)
    model.fit(np.clip((learned - middle) / spread, -8, 8), secrets)
    return np.asarray(model.predict_proba(np.clip((others - middle) / spread, -8, 8))[:, 1])


KINDS: dict[str, tuple[str, Callable[..., Floats]]] = {"trees": ("rows", trees), "network": ("sequences", network)}


def main() -> None:
    """Learn and answer for every cell; progress as JSON lines on standard output."""
    warnings.filterwarnings("ignore")
    tables = np.load(sys.argv[1])
    found: dict[str, Any] = {}
    for cell in sorted({name.rpartition("/")[0] for name in tables.files}):
        secrets, learning = tables[f"{cell}/secrets"], tables[f"{cell}/learning"]
        for kind, (what, answer) in KINDS.items():
            values, begun = tables[f"{cell}/{what}"], time.monotonic()
            chances = np.full(len(secrets), 0.5)
            if bool((values != values[0]).any()):
                for half in (learning, ~learning):
                    chances[~half] = answer(values[half], secrets[half], values[~half])
            found[f"{cell}/{kind}"] = chances
            print(json.dumps({"cell": cell, "kind": kind, "seconds": time.monotonic() - begun}), flush=True)
    np.savez(sys.argv[2], **found)


if __name__ == "__main__":
    main()
