"""`python -m benchmarks.detectors`: what all detectors cost, as a share of a request's time.

A service without detectors answers streams, and its processor time is read. Then the same prompts,
and the same pieces of the same answers, go through all detectors, in processor time of one thread.
The share is that of the second in both together. Exit code 1: it is above 1 %.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from appliance.detectors import table
from appliance.detectors.stream import Detection
from appliance.kernels.runtime.table import load
from benchmarks.receipts import DEMO, KEY, processor_seconds, service

MOST = 0.01
PROMPT = "Write a letter to the tax office about my new address, and say why the form {} was late. "


def answer(url: str, number: int, tokens: int) -> list[str]:
    """Return the pieces of a streamed answer."""
    body = {"model": "bench", "prompt": PROMPT.format(number), "max_tokens": tokens, "stream": True,
            "temperature": 0.9, "seed": number}
    asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {  # noqa: S310 - local
        "authorization": f"Bearer {KEY}", "content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=600) as came:  # noqa: S310 - local
        lines = [line[6:] for line in came.read().split(b"\n") if line.startswith(b"data: {")]
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"] if choice["text"]]


def answered(model: Path, streams: int, tokens: int) -> tuple[list[list[str]], float]:
    """Return answers in pieces, and the processor seconds that the service took for them."""
    with (tempfile.TemporaryDirectory() as place, service(Path(place) / "plain", model, chained=False) as (url, pid),
          concurrent.futures.ThreadPoolExecutor(streams) as pool):
        list(pool.map(lambda number: answer(url, number, tokens), range(streams)))  # warms it
        before = processor_seconds(pid)
        found = list(pool.map(lambda number: answer(url, number, tokens), range(streams)))
        return found, processor_seconds(pid) - before


def detected(answers: list[list[str]]) -> float:
    """Return the processor seconds of all detectors over these answers and their prompts."""
    detection, seconds = Detection(table.DETECTORS, load()), float("inf")
    for _ in range(3):
        begun = time.thread_time()
        for number, pieces in enumerate(answers):
            detection.apply(PROMPT.format(number), lambda: None)
            stage = detection.stage()
            for piece in pieces:
                stage.feed(piece)
            stage.finish()
        seconds = min(seconds, time.thread_time() - begun)
    return seconds


def main() -> int:
    """Measure, and print the share."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detectors", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=Path, nargs="?", default=DEMO,
                        help="a GGUF file (default: the demo model)")
    parser.add_argument("--streams", type=int, default=8, help="at once")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    args = parser.parse_args()
    answers, seconds = answered(args.model.resolve(), args.streams, args.tokens)
    own, pieces = detected(answers), sum(map(len, answers))
    share = own / (own + seconds)
    print(f"{len(answers)} answers in {pieces} pieces: {1000 * seconds / pieces:.3f} ms of processors a piece, "
          f"detectors {1000 * own / pieces:.3f} ms, {100 * share:.2f} % of both")
    return int(share > MOST)


if __name__ == "__main__":
    sys.exit(main())
