"""`python -m benchmarks.tenants.guidellm --llama PYTHON --guidellm PYTHON`: the figures of guidellm
with 1, 4, 16 and 64 streams, beside llama.cpp's server on the same machine.

`--llama`: the Python of an environment with the wheel `xllamacpp`; `--guidellm`: of one with
guidellm 0.8.1 (`python -m tests.clients.programs guidellm` leaves one in build/clients). Both
servers have as many places as there are streams, 16 at most, and get the same texts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants import byte_tokenizer
from benchmarks.tenants.chats import Llama, until_up
from benchmarks.tenants.crowds import CLIENTS, NAMES, PLACES, TENANT, table_of
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of

PROMPT, ANSWER = 256, 64  # bytes, each a token of guidellm's; tokens
CONTEXT = 1024


def measured(python: Path, port: int, streams: int, requests: int) -> dict[str, Any]:
    """Return guidellm's figures of a server, as a row of `crowds`. Raises SystemExit where a
    request fails."""
    with tempfile.TemporaryDirectory(prefix="bench-guidellm-") as folder:
        found = Path(folder) / "report.json"
        tokenizer = Path(folder) / "tokenizer"
        subprocess.run([python, byte_tokenizer.__file__, tokenizer], check=True)
        subprocess.run([
            python.parent / "guidellm", "run", "--backend",
            f"kind=openai_http,target=http://127.0.0.1:{port},model={MODEL},api_key={key_of(TENANT)},"
            "request_format=/v1/completions",
            "--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--profile",
            f"kind=concurrent,streams={streams}", "--data",
            f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}", "--constraint",
            f"kind=max_requests,count={requests}", "--output", f"kind=json,path={found}",
            "--disable-console-interactive"], check=True, stdout=subprocess.DEVNULL,
            env=os.environ | {"GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "WARNING"})
        [benchmark] = json.loads(found.read_text())["benchmarks"]
    if benchmark["requests"]["errored"] or len(benchmark["requests"]["successful"]) != requests:
        raise SystemExit(f"guidellm: requests failed: {benchmark['requests']['errored'][:1]}")
    first, gaps, speed = (benchmark["metrics"][name]["successful"] for name in (
        "time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second"))
    return {"first": [1e-3 * each for each in _spread(first)], "gaps": _spread(gaps), "speed": speed["mean"]}


def _spread(of: dict[str, Any]) -> list[float]:
    return [of["median"], of["percentiles"]["p99"]]


def both(model: Path, streams: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Both servers, one after the other."""
    places, threads = min(streams, PLACES), len(os.sched_getaffinity(0))
    deployment = Deployment(
        model, {TENANT: ""}, model_block=f"  context_length = {CONTEXT}",
        limits=f"  concurrent_requests = {places}\n  queued_requests = {streams}\n"
               f"  prompt_tokens = {CONTEXT - ANSWER}\n"
               f'  generation_tokens = {ANSWER}\n  first_token_timeout = "10m"')
    found, requests = dict[str, dict[str, Any]](), max(args.requests, 2 * streams)
    with Served(deployment) as served, Llama(args.llama, model, threads, places) as llama:
        for name, port in zip(NAMES, (served.port, llama.port), strict=True):
            asyncio.run(until_up(port))
            found[name] = measured(args.guidellm, port, streams, requests)
    return found


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.guidellm", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--llama", type=Path, required=True, metavar="PYTHON", help="of an environment with xllamacpp")
    parser.add_argument("--guidellm", type=Path, required=True, metavar="PYTHON", help="of one with guidellm")
    parser.add_argument("--streams", type=numbers.whole(1, 512), nargs="+", default=list(CLIENTS), help="crowds")
    parser.add_argument("--requests", type=numbers.whole(1, 10_000), default=16,
                        help="to each server; at least two of a stream (default: %(default)s)")
    commandline.options(parser, "guidellm.json")
    args = commandline.parse(parser)
    model = commandline.model(args.model, args.work)
    found = {streams: both(model, streams, args) for streams in args.streams}
    load = os.getloadavg()[0]
    args.output.write_text(json.dumps({"rows": found, "machine": report.machine(), "load_average": load}, indent=1)
                           + "\n")
    print(*table_of(found), f"load average {load:.1f}", sep="\n")
    return 0


if __name__ == "__main__":
    commandline.run(main)
