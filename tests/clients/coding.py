"""`python -m tests.clients.coding`: Codex and Claude Code against the real service, each through ten calls of tools.

The programs come from npm at the versions that `coding/package-lock.json` pins, into `build/clients/coding`. The model
is small and has random weights, so it makes no call of its own. A relay on loopback demands one: it adds a choice of
the tool to each of the first requests, and gives the tool a schema with one value. All else passes as it is. Prints a
line for each program, and exits 1 where one fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.clients.__main__ import BUILD, _installed
from tests.support import synthetic
from tests.support.server import KEY, Server, write_policy

HERE, CALLS, CONTEXT, SECONDS = Path(__file__).parent / "coding", 10, 131_072, 1800
TEMPLATE = (  # of a model that calls as Hermes does
    "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or "
    "[] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}[assistant]")
DONE = {"enum": ["done"]}  # the last answer
Script = Callable[[dict[str, Any], int], None]


def codex(body: dict[str, Any], number: int) -> None:
    """Demand a call of Codex' shell, and an end after the last."""
    if number >= CALLS:
        body |= {"tool_choice": "none", "text": {"format": {"type": "json_schema", "name": "end", "schema": DONE}}}
        return
    for tool in body["tools"]:
        if tool.get("name") == "exec_command":
            tool["parameters"] = _one(cmd=f"echo call {number}")
    body |= {"tool_choice": {"type": "function", "name": "exec_command"}}


def claude(body: dict[str, Any], number: int) -> None:
    """Demand a call of Claude Code's shell, and an end after the last."""
    if number >= CALLS:
        body |= {"tool_choice": {"type": "none"}, "output_config": {"format": {"type": "json_schema", "schema": DONE}}}
        return
    for tool in body["tools"]:
        if tool["name"] == "Bash":
            tool["input_schema"] = _one(command=f"echo call {number}", description="Say it")
    body |= {"tool_choice": {"type": "tool", "name": "Bash"}}


def _one(**values: str) -> dict[str, Any]:
    """A schema of one object."""
    return {"type": "object", "properties": {name: {"enum": [value]} for name, value in values.items()},
            "required": list(values), "additionalProperties": False}


class Relay(ThreadingHTTPServer):
    """Passes requests on to a service, those with tools by a script. `seen`: a status, the tokens that were found in a
    cache, and what was ignored, of each."""

    def __init__(self, url: str, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url, self.script, self.number = url, script, 0
        self.seen: list[tuple[int, int, str]] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def log_message(self, *_words: Any) -> None:
        """Say nothing."""

    def _relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() in (
            "authorization", "x-api-key", "content-type", "accept", "anthropic-version")}
        asked = json.loads(body) if body else {}
        if asked.get("tools") and "count_tokens" not in self.path:
            self.server.script(asked, self.server.number)
            self.server.number += 1
            body = json.dumps(asked).encode()
        with httpx.Client(timeout=SECONDS) as http:
            answer = http.request(self.command, self.server.url + self.path, content=body, headers=headers)
        if body:
            found = re.findall(r'"(?:cached_tokens|cache_read_input_tokens)":(\d+)', answer.text)
            self.server.seen.append((answer.status_code, int(found[-1]) if found else 0,
                                     answer.headers.get("appliance-ignored", "")))
        self.send_response(answer.status_code)
        for name in ("content-type", "appliance-ignored"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name in ("do_GET", "do_HEAD", "do_POST"):
            return self._relay
        raise AttributeError(name)


@contextmanager
def relay(url: str, script: Script) -> Iterator[Relay]:
    """A relay that serves."""
    running = Relay(url, script)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()


def _run(name: str, url: str, programs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in an empty folder, with nothing of this user's."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "APPLIANCE_API_KEY": KEY}
    if name == "codex":
        (home / "config.toml").write_text(
            f'model = "tiny"\nmodel_provider = "appliance"\n[model_providers.appliance]\nname = "appliance"\n'
            f'base_url = "{url}/v1"\nenv_key = "APPLIANCE_API_KEY"\nwire_api = "responses"\n'
            f'stream_idle_timeout_ms = {SECONDS * 1000}\n')
        environment["CODEX_HOME"] = str(home)
        command = [str(programs / ".bin/codex"), "exec", "--skip-git-repo-check",
                   "--dangerously-bypass-approvals-and-sandbox", "Count."]
    else:
        environment |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, "IS_SANDBOX": "1",
                        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
                        "API_TIMEOUT_MS": str(SECONDS * 1000)}
        command = [str(next(programs.glob("@anthropic-ai/claude-code-linux-*/claude"))), "-p", "Count.", "--model",
                   "tiny", "--tools", "Bash", "--allowedTools", "Bash"]
    return subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=SECONDS, check=False)


def tried(name: str, server: Server, programs: Path) -> bool:
    """Whether a program goes through ten calls to its end."""
    with tempfile.TemporaryDirectory() as folder, relay(server.url, codex if name == "codex" else claude) as between:
        done = _run(name, f"http://127.0.0.1:{between.server_address[1]}", programs, Path(folder))
        seen = list(between.seen)
    fine = done.returncode == 0 and between.number == CALLS + 1 and {200} == {status for status, _, _ in seen}
    fine = fine and all(found > 0 for _, found, _ in seen[-CALLS:])
    print(f"{'passed' if fine else 'FAILED'}  {name}: {between.number} requests with tools, status "
          f"{sorted({status for status, _, _ in seen})}, from the cache {[found for _, found, _ in seen]}, ignored: "
          f"{seen[-1][2] if seen else ''}", flush=True)
    if not fine:
        print(done.stdout[-2000:], done.stderr[-2000:], *(status for status, _, _ in seen), sep="\n")
    return fine


def main() -> int:
    """Try both."""
    folder, lock = BUILD / "coding", HERE / "package-lock.json"
    programs = _installed(folder, lock, ["cp", str(HERE / "package.json"), str(lock), "."],
                          ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]) / "node_modules"
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, "models", "tiny.gguf")
        model.parent.mkdir()
        model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], CONTEXT))
        own = Path(place, "service")
        own.mkdir()
        server = Server(write_policy(
            own, {"tiny": model}, schema=2,
            limits=f'prompt_tokens = {CONTEXT - 4096}\nrequest_size = "4MiB"\nconcurrent_requests = 2\n'
                   'first_token_timeout = "10m"\nanswer_timeout = "20m"',
            model=f'chat_template = {json.dumps(TEMPLATE)}\nprefix_cache {{\n size = "256MiB"\n lifetime = "1h"\n}}'),
            [model]).wait_ready()
        try:
            return sum(not tried(name, server, programs) for name in ("codex", "claude"))
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
