"""`python -m benchmarks.receipts`: what a chained log and receipts cost a request under load.

Two services of one model run. One is by schema 1, whose log is neither chained nor flushed. The
other, by schema 2, has a chained log in a file, a checkpoint each second, detail for an auditor,
and a receipt for every answer. In each round both have the same streams, one service after the
other, in an order that turns. Processor time of the service is given beside wall time, which a busy
machine disturbs. Exit code 1: the median of either is 2 % or more above.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
KEY, MOST = "sk-benchmark", 0.02
POLICY = """
appliance {{
  name   = "bench"
  schema = {schema}
}}
tee {{ platforms = ["simulated"] }}
model "bench" {{
  file           = "{file}"
  sha256         = "{sha256}"
  context_length = 2048
}}
privacy {{ {privacy} }}
limits {{ concurrent_requests = 64 }}
tenants {{
  tenant "one" {{
    models         = ["bench"]
    api_key_sha256 = ["{key}"]
  }}
}}
service {{
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {{
    kind = "tcp"
    port = 1
  }}
}}
audit {{ {audit} }}
"""


@contextmanager
def service(folder: Path, model: Path, *, chained: bool) -> Iterator[tuple[str, int]]:
    """URL and process number of a service."""
    folder.mkdir()
    key = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    path = folder / "policy.hcl"
    path.write_text(POLICY.format(
        schema=2 if chained else 1, file=model.name, sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        key=hashlib.sha256(KEY.encode()).hexdigest(), privacy=f'auditor_key = "x25519:{key}"' if chained else "",
        audit='checkpoint_interval = "1s"\n  receipts = true' if chained else ""))
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "serve", str(path), "--json", "--listen-port", "0", "--log",
             str(folder / "audit.jsonl"), "--models", str(model.parent)], stdout=out, stderr=out, cwd=ROOT)
    try:
        yield _url(process, folder / "out"), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _url(process: subprocess.Popen[bytes], said: Path) -> str:
    while process.poll() is None:
        for line in said.read_text().splitlines(keepends=True):
            if '"event": "ready"' in line and line.endswith("\n"):
                return str(json.loads(line)["listening"][0])
        time.sleep(0.1)
    raise SystemExit(said.read_text())


def processor_seconds(pid: int) -> float:
    """Seconds of all processors that a process's threads took so far."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def load(url: str, streams: int, tokens: int, *, receipts: bool) -> None:
    """So many streams at once, each read to its end."""
    def one(number: int) -> None:
        body = {"model": "bench", "prompt": f"{number}: once upon a time there was", "max_tokens": tokens,
                "stream": True, "temperature": 0.9, "seed": number}
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        headers |= {"appliance-receipt": "1"} if receipts else {}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)  # noqa: S310 - local
        with urllib.request.urlopen(asked, timeout=600) as answer:  # noqa: S310 - local
            found = answer.read()
        if (b"appliance.receipt" in found) != receipts or not found.endswith(b"[DONE]\n\n"):
            raise SystemExit(found.decode()[-400:])

    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(one, range(streams)))


def measure(model: Path, rounds: int, streams: int, tokens: int) -> dict[str, Any]:
    """The ratios, round by round."""
    found: dict[str, list[float]] = {"wall": [], "processor": []}
    with tempfile.TemporaryDirectory() as place, service(Path(place) / "plain", model, chained=False) as plain, \
            service(Path(place) / "chained", model, chained=True) as chained:
        for number in range(-1, rounds):  # the first warms both
            took = {}
            for name, (url, pid) in sorted({"plain": plain, "chained": chained}.items(), reverse=bool(number % 2)):
                wall, processor = time.perf_counter(), processor_seconds(pid)
                load(url, streams, tokens, receipts=name == "chained")
                took[name] = time.perf_counter() - wall, processor_seconds(pid) - processor
            if number >= 0:
                for index, kind in enumerate(found):
                    found[kind].append(took["chained"][index] / took["plain"][index])
                print(f"round {number + 1}: " + ", ".join(f"{name} {wall:.3f} s, {processor:.2f} s of processors"
                                                          for name, (wall, processor) in took.items()), flush=True)
    return found


def main() -> int:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receipts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=Path, nargs="?", default=DEMO,
                        help="a GGUF file (default: the demo model)")
    parser.add_argument("--rounds", type=int, default=80, help="pairs (the noise of one is far above what is measured)")
    parser.add_argument("--streams", type=int, default=8, help="at once")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    args = parser.parse_args()
    found = measure(args.model.resolve(), args.rounds, args.streams, args.tokens)
    medians = {kind: statistics.median(ratios) for kind, ratios in found.items()}
    for kind, ratios in found.items():
        print(f"{kind:10} {100 * (medians[kind] - 1):+.2f} % (median of {len(ratios)} rounds; "
              f"{100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f})")
    return int(any(median - 1 >= MOST for median in medians.values()))


if __name__ == "__main__":
    sys.exit(main())
