"""`python -m benchmarks.memory`: a sealed model served within memory limits, by the real service in
a control group.

For each limit: boot, one prompt of full length with its answer, then a dump of the process is
searched for weights. Reports peaks at load and in use, time to the first token and tokens a second,
and the most plaintext that was seen.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from appliance.boot.planning import budget
from appliance.cli import bars, numbers
from appliance.keys import providers as keys
from appliance.models.catalogue import Catalogue
from appliance.models.sealed import header as sealed_header
from appliance.models.sealed import reader as sealed
from appliance.policy import load
from appliance.sealing import keyfile, sealing
from benchmarks import commandline, libraries, models, report
from benchmarks.cgroups import Group, needed
from benchmarks.residue import STEP, Search, known

API_KEY = "sk-benchmark"
SPARE = 4 << 20  # bytes of a limit that the kernel takes for itself
ROOT = Path(__file__).parents[1]
POLICY = """
appliance {{
  name   = "memory-benchmark"
  schema = 1
}}
tee {{
  platforms = ["simulated"]
  {tee}
}}
model "m" {{
  file   = "{file}"
  sha256 = "{sha256}"
  {pins}
  streaming_decrypt      = {streaming}
  context_length         = {context}
  kv_cache               = "{cache}"
  chat_template_fallback = "chatml"
}}
limits {{
  prompt_tokens       = {prompt}
  generation_tokens   = {answer}
  concurrent_requests = {requests}
  request_size        = "64KiB"
  first_token_timeout = "1h"
}}
tenants {{
  tenant "benchmark" {{
    models         = ["m"]
    api_key_sha256 = ["{key}"]
  }}
}}
service {{
  operator_may_set = ["log_sink"]
  listen "api" {{
    kind = "unix"
    path = "{folder}/api.sock"
  }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """The model that is served, and how."""

    file: Path  # sealed, or plain
    key: Path | None  # of a sealed one
    streaming: str = "true"  # or "false", or "auto" with its quotes
    cache: str = "q8"
    prompt: int = 2048
    answer: int = 16
    requests: int = 1
    tee: str = ""
    python: tuple[str, ...] = (sys.executable,)

    def write(self, folder: Path) -> Path:
        """The policy, in `folder`."""
        if self.key is None:
            sha256, pins = _sha256(self.file), ""
        else:
            header, _ = sealed.structure(self.file)
            sha256 = header.sha256.hex()
            pins = (f'sealed_header_sha256 = "{header.digest.hex()}"\n'
                    f'key {{\n provider = "file"\n path = "{self.key.resolve()}"\n }}')
        path = folder / "policy.hcl"
        path.write_text(POLICY.format(
            file=self.file.name, sha256=sha256, pins=pins, streaming=self.streaming, cache=self.cache, tee=self.tee,
            prompt=self.prompt, answer=self.answer, context=self.prompt + self.answer, requests=self.requests,
            key=hashlib.sha256(API_KEY.encode()).hexdigest(), folder=folder))
        return path


@functools.cache
def _sha256(path: Path) -> str:
    """Read once: later it would bring the file into the page cache, charged to nobody, after it was
    dropped."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def command(case: Case, folder: Path) -> list[str]:
    """The service as a command; its policy, log and socket are in `folder`."""
    return [*case.python, "-m", "appliance", "serve", str(case.write(folder)), "--json", "--log",
            str(folder / "audit"), "--models", str(case.file.parent.resolve())]


class Served:
    """The service in a control group of its own."""

    def __init__(self, case: Case, limit: int | None, folder: Path) -> None:
        self.folder, self.most_anonymous = folder, 0
        self._start(case, limit)
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _start(self, case: Case, limit: int | None) -> None:
        self.group = Group("appliance-benchmark", limit)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = subprocess.Popen(command(case, self.folder), stdout=out, stderr=err, cwd=ROOT,
                                             preexec_fn=self.group.enter)
        self.pid = self._process.pid

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(OSError):  # a container that has ended takes its group with it
                self.most_anonymous = max(self.most_anonymous, self.group.stat()["anonymous"])

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self) -> str:
        """The text that it wrote to standard error."""
        return (self.folder / "err").read_text(errors="replace")

    def client(self) -> httpx.Client:
        """A client that talks to it."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=str(self.folder / "api.sock")), timeout=3600,
                            base_url="http://appliance", headers={"authorization": f"Bearer {API_KEY}"})

    def ready(self, seconds: float = 600) -> None:
        """Wait until it listens; RuntimeError with what it wrote when it ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.running():
            if '"event": "ready"' in self.said():
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.said()[-2000:]}\nkilled for want of memory: {self.group.killed()}")

    def memory(self) -> dict[str, int]:
        """Peaks so far in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
        return {"process_peak": peak, "anonymous_peak": self.most_anonymous, "group_peak": self.group.peak()}

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._watcher.join()
        self._end()

    def _end(self) -> None:
        if self.running():
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.group.close()


def ask(client: httpx.Client, ids: list[int], answer: int, temperature: float = 0) -> dict[str, Any]:
    """One request; seconds to the first token, tokens a second after it."""
    body = {"model": "m", "prompt": ids, "max_tokens": answer, "temperature": temperature, "seed": 1,
            "stream": True, "stream_options": {"include_usage": True}}
    times, usage, begun = [], None, time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(response.read().decode())
        for line in response.iter_lines():
            if line.startswith("data: {"):
                part = json.loads(line[6:])
                if part.get("error"):
                    raise RuntimeError(json.dumps(part))
                usage = part.get("usage") or usage
                if part["choices"]:
                    times.append(time.perf_counter() - begun)
    tokens = usage["completion_tokens"]
    span = times[-1] - times[0]
    return {"prompt_tokens": usage["prompt_tokens"], "answer_tokens": tokens, "first_token_seconds": times[0],
            "tokens_per_second": (tokens - 1) / span if span > 0 and tokens > 1 else None,
            "prompt_tokens_per_second": usage["prompt_tokens"] / times[0]}


def forget(file: Path) -> None:
    """Drop a file from the page cache, so that whoever reads it next is charged for it."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bring(file: Path) -> None:
    """Read a file into the page cache."""
    with file.open("rb") as opened:
        while opened.read(16 << 20):
            pass


def measure(case: Case, limit: int | None, search: Search | None, every: float = 5.0,
            kind: type[Served] = Served) -> dict[str, Any]:
    """Serve one prompt within `limit` bytes; while it is answered, `search` looks at the process
    now and then."""
    row: dict[str, Any] = {"file": case.file.name, "file_bytes": case.file.stat().st_size, "limit": limit,
                           "streaming": case.streaming.strip('"'), "kv_cache": case.cache}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        served = kind(case, limit, Path(folder))
        try:
            served.ready()
            row["load_seconds"], row["load"] = time.perf_counter() - begun, served.memory()
            health = served.client().get("/health").json()
            row["boot"] = next((step["detail"] for step in health["boot"] if step["step"] == "models"), None)
            ids = [1, *np.random.default_rng(2).integers(300, 3000, case.prompt - 1).tolist()]
            done, seen = threading.Event(), list[int]()

            def look() -> None:
                while search is not None and not done.wait(every):
                    seen.append(search.stopped(served.pid).plaintext)

            watcher = threading.Thread(target=look)
            watcher.start()
            try:
                row["answer"] = ask(served.client(), ids, case.answer)
            finally:
                done.set()
                watcher.join()
            row["use"] = served.memory()
            row["killed"] = served.group.killed()
            if search is not None:
                row["plaintext_seen"] = {"step": STEP, "while_answering": seen,
                                         "after": search.stopped(served.pid).plaintext}
        except RuntimeError as error:
            row["error"] = str(error)
        finally:
            served.close()
    return row


def sealed_model(name: str, work: Path, *, tile_size: int | None = None) -> tuple[Path, Path]:
    """The sealed model of a name or GGUF file, and its key, made unless they are there (of this
    version of the format, and of a file as it is now)."""
    given = None if models.is_known(name) else commandline.model(name, work)
    path, key = work / (f"{name}.sealed" if given is None else f"given-{given.stem}.sealed"), work / "synthetic.key"
    work.mkdir(parents=True, exist_ok=True)
    if not key.exists():
        keyfile.make(key)
    if path.exists() and not _current(path, given):
        path.unlink()
    if not path.exists():
        plain = models.make(name, work) if given is None else given
        with keys.FileKey(key).key() as secret, bars.bars() as progress:
            sealing.seal(plain, path, secret.data, progress=progress,
                         **({} if tile_size is None else {"tile_size": tile_size}))
    return path, key


def _current(path: Path, given: Path | None) -> bool:
    with path.open("rb") as file:
        if file.read(len(sealed_header.MAGIC)) != sealed_header.MAGIC:
            return False
    return given is None or sealed.structure(path)[0].sha256.hex() == _sha256(given)


def _kind(container: bool) -> type[Served]:
    if not container:
        return Served
    from benchmarks.containers import Contained  # needs testcontainers and a daemon

    return Contained


def longest(case: Case, limit: int) -> Case:
    """The case with the longest prompt, in multiples of 64, that a boot accepts within `limit`
    bytes."""
    def fits(prompt: int) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            policy = load(dataclasses.replace(case, prompt=prompt).write(Path(folder))).policy
        return budget.divide(policy, Catalogue({"m": case.file}), limit).refusal is None

    low, high = 1, 127  # of 64 tokens; the synthetic models say 8192
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(64 * middle) else (low, middle - 1)
    return dataclasses.replace(case, prompt=64 * low)


def _line(row: dict[str, Any]) -> str:
    limit = "none" if row["limit"] is None else f"{row['limit'] >> 20} MiB"
    if "error" in row:
        return f"{row['file']} {limit}: {row['error'].strip()}"
    answer, peaks = row["answer"], [f"{where} {row[where]['process_peak'] >> 20} MiB ("
                                    f"{row[where]['anonymous_peak'] >> 20} anonymous)" for where in ("load", "use")]
    speed = answer["tokens_per_second"]
    text = (f"{row['file']} {limit} {row['streaming']} {row['kv_cache']}: peak at {', in '.join(peaks)}; first token "
            f"of {answer['prompt_tokens']} after {answer['first_token_seconds']:.1f} s, then "
            + ("-" if speed is None else f"{speed:.2f}") + " tokens/s")
    if "plaintext_seen" in row:
        seen = row["plaintext_seen"]
        text += (f"; plaintext seen: at most {max(seen['while_answering'], default=0) / 2**20:.2f} MiB in "
                 f"{len(seen['while_answering'])} looks, {seen['after'] / 2**20:.2f} after")
    return text


def main() -> int:
    """Measure; 1 when a row failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="7b-gqa", help=f"{commandline.NAMES}, or a GGUF file")
    parser.add_argument("--limits", type=commandline.LIMITS, default="512,1024,2048", metavar="MIB,MIB",
                        help="0: none (default: %(default)s)")
    parser.add_argument("--streaming", default="true", choices=("true", "false", "auto"))
    parser.add_argument("--cache", default="q8", choices=("f16", "q8", "q4"))
    parser.add_argument("--prompt", type=numbers.whole(0, 1 << 20), default=2048,
                        help="tokens; 0: as many as fit (default: %(default)s)")
    parser.add_argument("--answer", type=commandline.TOKENS, default=16)
    parser.add_argument("--budget", action="store_true", help="the limit is also the policy's tee.memory_budget")
    parser.add_argument("--scan", action="store_true", help="search the process for plaintext weights")
    parser.add_argument("--every", type=numbers.SECONDS, default=5.0, metavar="SECONDS", help="between two searches")
    parser.add_argument("--warm", action="store_true", help="leave the file in the page cache, charged to nobody")
    parser.add_argument("--plain", action="store_true", help="serve the GGUF file, not the sealed one")
    libraries.option(parser)
    parser.add_argument("--container", action="store_true", help="serve in a container, through testcontainers")
    commandline.options(parser, "memory.json")
    args = commandline.parse(parser)
    if not args.prompt and 0 in args.limits:
        parser.error("--prompt 0 needs limits: without one, nothing bounds the prompt")
    if args.plain and args.streaming == "true":
        parser.error("--plain needs --streaming false or auto: a policy that says true has a sealed model")
    needed()
    key: Path | None
    file, key = sealed_model(args.model, args.work)
    if args.plain:
        file, key = commandline.model(args.model, args.work), None
    search = None
    if args.scan and key is not None:
        with keys.FileKey(key).key() as secret:
            search = Search(known(file, bytes(secret.data)))
    document = {"machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
                "load_average": os.getloadavg()[0], "rows": []}
    for limit in (each << 20 or None for each in args.limits):
        streaming = args.streaming if args.streaming != "auto" else '"auto"'
        case = Case(file, key, streaming, args.cache, args.prompt, args.answer,
                    tee=f'memory_budget = "{limit >> 20}MiB"' if args.budget and limit else "",
                    python=(sys.executable,) if args.container else libraries.python(args))  # it has this system's
        if not args.prompt and limit is not None:
            case = longest(case, limit - SPARE)
        if not args.warm:
            forget(case.file)
        row = measure(case, limit, search, args.every, _kind(args.container))
        document["rows"].append(row)
        print(_line(row), flush=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    return int(any("error" in row for row in document["rows"]))


if __name__ == "__main__":
    commandline.run(main)
