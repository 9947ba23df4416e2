"""The load of guidellm, as `crowds` measures by it: so many streams of texts that it makes up.

First tokens, gaps and speed are its own figures. A tokenizer of bytes is made for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tenants import byte_tokenizer
from benchmarks.tenants.served import MODEL

PROMPT, ANSWER = 256, 64  # bytes, each a token of guidellm's; tokens


def measured(python: Path, port: int, key: str, streams: int, requests: int) -> dict[str, Any]:
    """Return guidellm's figures of a server, as a row of `crowds`. Raises SystemExit where a
    request fails."""
    with tempfile.TemporaryDirectory(prefix="bench-guidellm-") as folder:
        found, tokenizer = Path(folder) / "report.json", Path(folder) / "tokenizer"
        subprocess.run([python, byte_tokenizer.__file__, tokenizer], check=True)
        subprocess.run([
            python.parent / "guidellm", "run", "--backend",
            f"kind=openai_http,target=http://127.0.0.1:{port},model={MODEL},api_key={key},"
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
