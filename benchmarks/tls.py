"""`python -m benchmarks.tls`: the service's TLS beside Python's own `ssl`, in one run.

Two services of one model run at the same time: one as it ships (pyOpenSSL over memory), one with
asyncio's transport over `ssl`, as it was before. Both have the same certificates in size, the same
HTTP and the same engine. In each round they have the same work, in an order that turns:

- handshakes, one after the other and four at once, by a client of Python's `ssl` (classic key
  exchange) and one of the product's (hybrid with ML-KEM where the server has it);
- chats on a kept connection.

Then 1,000 connections are opened to each, and two more services rotate their keys every three
seconds under load. Exit code 1: a request of the service as it ships was lost. About four minutes;
milliseconds are right only on an idle machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance import isolated
from appliance.tls import TlsStream, client_context
from benchmarks.receipts import DEMO, KEY, ROOT, processor_seconds

STACKS = ("product", "stdlib")
LANES = 4  # handshakes at once
DAY_MS, SHORT_MS = 24 * 3_600_000, 3_000
SECONDS, CLIENTS, CHATS = 12.0, 12, 2  # of the load while keys rotate
SETTLE_SECONDS = 0.3  # until a service has done what is left of a burst
POLICY = """
appliance {{
  name   = "bench"
  schema = 2
}}
tee {{ platforms = ["simulated"] }}
model "bench" {{
  file           = "{file}"
  sha256         = "{sha256}"
  context_length = 512
}}
limits {{
  prompt_tokens       = 256
  generation_tokens   = 64
  concurrent_requests = 16
  queued_requests     = 992
}}
tenants {{
  tenant "one" {{
    models         = ["bench"]
    api_key_sha256 = ["{key}"]
  }}
}}
service {{
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {{
    kind = "ra-tls"
    port = 1
  }}
}}
"""


def classic(port: int) -> Any:
    """A connection of Python's `ssl` after its handshake. Its OpenSSL has no ML-KEM before 3.5."""
    raw = socket.create_connection(("127.0.0.1", port), 60)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return _CLASSIC.wrap_socket(raw)
    except BaseException:
        raw.close()
        raise


def hybrid(port: int) -> Any:
    """A connection of the product's client after its handshake."""
    raw = socket.create_connection(("127.0.0.1", port), 60)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return TlsStream(raw, _HYBRID)
    except BaseException:
        raw.close()
        raise


_CLASSIC, _HYBRID = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), client_context()
_CLASSIC.check_hostname, _CLASSIC.verify_mode = False, ssl.CERT_NONE
CONNECT: dict[str, Callable[[int], Any]] = {"ssl": classic, "product": hybrid}


@dataclass(frozen=True)
class Service:
    """A process that serves, by its port; `log` is its audit log."""

    port: int
    pid: int
    log: Path

    @property
    def memory(self) -> int:
        """Bytes of memory of its own."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

    @property
    def rotations(self) -> int:
        """How often it had a new key, by its log."""
        return sum('"generation.new"' in line for line in self.log.read_text().splitlines()) - 1


@contextlib.contextmanager
def serving(stack: str, model: Path, rotation_ms: int) -> Iterator[Service]:
    """A service with one of the stacks."""
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as name:
        folder = Path(name)
        (folder / "policy.hcl").write_text(POLICY.format(
            file=model.name, sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
            key=hashlib.sha256(KEY.encode()).hexdigest()))
        words = ["serve", str(folder / "policy.hcl"), "--json", "--listen-port", "0", "--log",
                 str(folder / "audit.jsonl"), "--models", str(model.parent)]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "benchmarks.tls_server", stack, str(rotation_ms), *words],
                                       stdout=out, stderr=out, cwd=ROOT, env={**os.environ, **isolated.SET})
        try:
            yield Service(_port(process, folder / "out"), process.pid, folder / "audit.jsonl")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _port(process: subprocess.Popen[bytes], said: Path) -> int:
    while process.poll() is None:
        for line in said.read_text().splitlines(keepends=True):
            if '"event": "ready"' in line and line.endswith("\n"):
                return int(json.loads(line)["listening"][0].rpartition(":")[2])
        time.sleep(0.1)
    raise SystemExit(said.read_text())


class Kept:
    """A connection that asks one request after the other. `closing`: the service said that the last
    answer was the last one."""

    def __init__(self, stream: Any) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1")
        self._http.auto_open = 0
        self._http.sock = stream
        self.closing = False

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of an answer. Raises OSError or HTTPException where none comes whole."""
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        self._http.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._http.getresponse()
        self.closing = answer.will_close
        data = answer.read()
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}: {data[:200]!r}")
        return data

    def close(self) -> None:
        """End it."""
        self._http.close()


def chat(tokens: int, seed: int) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": "bench", "max_tokens": tokens, "seed": seed, "temperature": 0.9,
            "messages": [{"role": "user", "content": f"{seed}: tell me of the sea"}]}


@dataclass
class Row:
    """One stack by one client: milliseconds of handshakes one after the other, those in a second by
    four lanes, and the service's milliseconds of a processor for each."""

    stack: str
    client: str
    latency: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    group: str = ""


def handshakes(service: Service, row: Row, count: int) -> None:
    """Measure so many handshakes in both ways."""
    connect = CONNECT[row.client]

    def one(_: int) -> float:
        begun = time.perf_counter()
        stream = connect(service.port)
        took = time.perf_counter() - begun
        stream.close()
        return took

    row.latency += [1000 * one(number) for number in range(count)]
    time.sleep(SETTLE_SECONDS)
    used, begun = processor_seconds(service.pid), time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(LANES) as lanes:
        list(lanes.map(one, range(2 * count)))
    row.rate.append(2 * count / (time.perf_counter() - begun))
    time.sleep(SETTLE_SECONDS)
    row.processor.append(1000 * (processor_seconds(service.pid) - used) / (2 * count))


def group(service: Service, client: str) -> str:
    """The key exchange of a client with a service. Python's `ssl` does not tell it."""
    if client == "ssl":
        return "classic" if ssl.OPENSSL_VERSION_INFO < (3, 5) else "not told"
    stream = hybrid(service.port)
    found = str(stream.session.key_exchange)
    stream.close()
    return found


def chats(service: Service, count: int, tokens: int) -> tuple[list[float], float]:
    """Milliseconds of chats on a kept connection, and the service's of a processor for each."""
    kept, took = Kept(classic(service.port)), []
    used = processor_seconds(service.pid)
    for seed in range(count):
        begun = time.perf_counter()
        kept.ask("POST", "/v1/chat/completions", chat(tokens, seed))
        took.append(1000 * (time.perf_counter() - begun))
    kept.close()
    return took, 1000 * (processor_seconds(service.pid) - used) / count


def crowd(service: Service, count: int) -> dict[str, float]:
    """Open so many connections, each with one answer, and tell what one of them takes."""
    before, begun = service.memory, time.perf_counter()
    opened = []
    try:
        for _ in range(count):
            opened.append(Kept(classic(service.port)))
            opened[-1].ask("GET", "/health")
        took = time.perf_counter() - begun
        nbytes = (service.memory - before) / count
        begun = time.perf_counter()
        for each in opened:
            each.ask("GET", "/health")
        return {"open": count, "bytes_of_each": nbytes, "seconds_to_open": took,
                "requests_a_second": count / (time.perf_counter() - begun)}
    finally:
        for each in opened:
            each.close()


@dataclass
class Load:
    """A load while keys rotate: answers, requests without one, and connections that were opened."""

    answers: int = 0
    chats: int = 0
    lost: int = 0
    opened: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self.lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)


def keep_asking(service: Service, connect: Callable[[int], Any], load: Load, until: float, tokens: int) -> None:
    """Ask on kept connections until a moment: chats of so many tokens, or /health. Replace a
    connection that the service closes with an answer."""
    kept, number = None, 0
    while time.monotonic() < until:
        try:
            if kept is None:
                kept = Kept(connect(service.port))
                load.count(opened=1)
            number += 1
            if tokens:
                kept.ask("POST", "/v1/chat/completions", chat(tokens, number))
            else:
                kept.ask("GET", "/health")
            load.count(answers=1, chats=int(tokens > 0))
        except (OSError, http.client.HTTPException):
            load.count(lost=1)
            kept = None
            continue
        if kept.closing:
            kept.close()
            kept = None
    if kept is not None:
        kept.close()


def rotation(stack: str, model: Path, seconds: float) -> dict[str, Any]:
    """Count the requests that were lost while keys rotated under load."""
    with serving(stack, model, SHORT_MS) as service:
        load, until = Load(), time.monotonic() + seconds
        lanes = [threading.Thread(target=keep_asking, args=(
            service, hybrid, load, until, 64 if number < CHATS else 0)) for number in range(CLIENTS)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        return {"stack": stack, "rotations": service.rotations, "answers": load.answers, "chats": load.chats,
                "connections": load.opened, "lost": load.lost}


def measure(model: Path, rounds: int, count: int, asked: int, open_at_once: int, seconds: float) -> dict[str, Any]:
    """All figures."""
    rows = [Row(stack, client) for client in CONNECT for stack in STACKS]
    talk: dict[str, tuple[list[float], list[float]]] = {stack: ([], []) for stack in STACKS}
    with serving("product", model, DAY_MS) as ours, serving("stdlib", model, DAY_MS) as former:
        services = {"product": ours, "stdlib": former}
        for row in rows:
            row.group = group(services[row.stack], row.client)
            handshakes(services[row.stack], Row(row.stack, row.client), 10)  # to warm both ends
        for number in range(rounds):
            for row in rows[::1 - 2 * (number % 2)]:
                handshakes(services[row.stack], row, count)
            for stack in STACKS[::1 - 2 * (number % 2)]:
                took, used = chats(services[stack], asked, 16)
                talk[stack][0].extend(took)
                talk[stack][1].append(used)
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        crowds = {stack: crowd(services[stack], open_at_once) for stack in STACKS}
    rotated = [rotation(stack, model, seconds) for stack in STACKS]
    return {
        "handshakes": [{"stack": row.stack, "client": row.client, "key_exchange": row.group, **_spread(row.latency),
                        "a_second": statistics.median(row.rate), "processor_ms": statistics.median(row.processor)}
                       for row in rows],
        "chats": [{"stack": stack, **_spread(took), "processor_ms": statistics.median(used)}
                  for stack, (took, used) in talk.items()],
        "connections": [{"stack": stack, **found} for stack, found in crowds.items()], "rotation": rotated}


def _spread(found: Sequence[float]) -> dict[str, float]:
    ordered = sorted(found)
    return {"p50_ms": statistics.median(ordered), "p99_ms": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """The figures as text, one part after the other."""
    parts = []
    for title, rows in found.items():
        names = list(rows[0])
        cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
        widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
        parts.append("\n".join([title, *("  " + "  ".join(
            word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in cells)]))
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=Path, nargs="?", default=DEMO,
                        help="a GGUF file (default: the demo model)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--handshakes", type=int, default=100, help="in a round, one after the other; twice as many at "
                        "once")
    parser.add_argument("--chats", type=int, default=8, help="in a round")
    parser.add_argument("--connections", type=int, default=1000, help="open at once")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load while keys rotate")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = measure(args.model.resolve(), args.rounds, args.handshakes, args.chats, args.connections, args.seconds)
    print(json.dumps({"load_average": os.getloadavg(), **found}, indent=2) if args.json else table(found))
    return int(any(each["lost"] for each in found["rotation"] if each["stack"] == "product"))


if __name__ == "__main__":
    sys.exit(main())
