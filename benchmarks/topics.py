"""`python -m benchmarks.topics`: whether a host that watches all pages of a process tells the topic
of a text that goes to tokens.

Texts on four topics have the same number of bytes, and words that are drawn. The whole process is
traced while a text is read: its heap, its libraries and its tables, but not its stacks and the C
library. A classifier learns from half of the traces how often each page was entered, and each two
pages in a row. The other half judges it. Pages of the tokenizer as it is must tell the topic, which
shows that the tracer sees them.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.cli import numbers
from appliance.text.tokenizer import Tokenizer
from tests.support import oblivious
from tests.support.page_traces import PageTracer

TOPICS = {
    "medicine": "patient fever dose nurse clinic blood artery tumour vaccine surgeon symptom pulse liver infection",
    "law": "contract court judge plaintiff tenant clause lawsuit verdict appeal witness statute damages trustee",
    "kitchen": "butter onion simmer garlic flour oven whisk pepper broth recipe saucepan roast vinegar dough",
    "machines": "compiler thread pointer kernel socket buffer stack latency deadlock cache packet driver register",
}
COMMON = ("the", "of", "and", "to", "in", "is", "that", "for", "with", "was", "on", "are", "this", "by", "from", "or")
_OPEN = 48  # pages that may be used at a time


def texts(count: int, nbytes: int, seed: int) -> list[tuple[int, str]]:
    """So many texts of exactly so many bytes, each with its topic's number."""
    rng, found, lists = random.Random(seed), list[tuple[int, str]](), [words.split() for words in TOPICS.values()]
    for number in range(count):
        topic = number % len(lists)
        words = (rng.choice(lists[topic] if rng.random() < 0.4 else COMMON) for _ in range(nbytes))
        found.append((topic, " ".join(words)[:nbytes]))
    rng.shuffle(found)
    return found


def traces(tokenizer: Tokenizer, given: Sequence[tuple[int, str]], folder: Path) -> tuple[list[bytes], list[int]]:
    """The pages in their order, and how many tokens there were."""
    for _, text in given[:20]:
        tokenizer.encode(text)
    found, counts = [], []
    gc.collect()
    gc.disable()
    tracer = PageTracer([], folder, _OPEN)
    tracer.add_process()
    for _, text in given:
        with tracer.tracing():
            tokens = tokenizer.encode(text)
        found.append(tracer.pages)
        counts.append(len(tokens))
    gc.enable()
    return found, counts


def features(found: Sequence[bytes]) -> NDArray[np.float64]:
    """A row for each trace: how often pages were entered, and pairs of them."""
    rows = [np.frombuffer(pages, np.uint64) >> np.uint64(12) for pages in found]
    single = [Counter(row.tolist()) for row in rows]
    double = [Counter((row[:-1] * np.uint64(1_000_003) ^ row[1:]).tolist()) for row in rows]
    return np.hstack([_counts(single, 4000), _counts(double, 4000)])


def _counts(found: Sequence[Counter[int]], most: int) -> NDArray[np.float64]:
    """Logarithms of counts, of the keys whose number differs most often."""
    spread = Counter[int]()
    for each in found:
        spread.update(each.keys())
    keys = [key for key, _ in sorted(spread.items(), key=lambda item: abs(item[1] - len(found) / 2))[:most]]
    keys += [key for key in spread if spread[key] == len(found)][:most]
    return np.log1p(np.array([[each.get(key, 0) for key in keys] for each in found], np.float64))


def judge(rows: NDArray[np.float64], topics: NDArray[np.int64]) -> float:
    """The share of the second half that the nearest centre of the first one names rightly."""
    half = len(rows) // 2
    spread = rows[:half].std(0)
    rows = (rows[:, spread > 0] - rows[:half, spread > 0].mean(0)) / spread[spread > 0]
    centres = np.array([rows[:half][topics[:half] == topic].mean(0) for topic in range(len(TOPICS))])
    weights = centres.std(0) ** 2  # what tells topics counts
    distances = (((rows[half:, None] - centres) ** 2) * weights).sum(2)
    return float((distances.argmin(1) == topics[half:]).mean())


def measure(form: str, count: int, nbytes: int, seed: int) -> dict[str, Any]:
    """One form of the tokenizer."""
    tokenizer, given = oblivious.both()[form == "oblivious"], texts(count, nbytes, seed)
    with tempfile.TemporaryDirectory() as folder:
        found, counts = traces(tokenizer, given, Path(folder))
    topics, sizes = np.array([topic for topic, _ in given]), np.array(counts, np.float64)[:, None]
    return {"traces": len(found), "different": len(set(found)),
            "entries": int(np.median([len(each) // 8 for each in found])),
            "share": round(judge(features(found), topics), 3), "by_tokens": round(judge(sizes, topics), 3)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description="topics by pages")
    for name, least, most, default, words in (("count", 40, 100_000, 400, "texts"),
                                              ("bytes", 64, 4096, 256, "of a text"),
                                              ("seed", 0, 2**32, 1, "of what is drawn")):
        parser.add_argument(f"--{name}", type=numbers.whole(least, most), default=default,
                            help=f"{words} (default: %(default)s)")
    arguments = parser.parse_args()
    found = {form: measure(form, arguments.count, arguments.bytes, arguments.seed) for form in ("open", "oblivious")}
    print(json.dumps({"bytes": arguments.bytes, "topics": len(TOPICS), **found}, indent=1))
    return int(found["open"]["share"] < 0.9)


if __name__ == "__main__":
    raise SystemExit(main())
