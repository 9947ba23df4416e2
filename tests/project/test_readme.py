"""The first screen of README is true: its policy boots and answers, and reading takes what the sizes say."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import code_lines, size, waiting, written
from tests.support.environment import unmeasured
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
MODELS = ROOT / "build/models"
KEY = "sk-appliance-demo"  # the page names it beside the first chat
LINES_AN_HOUR, HOURS_A_DAY = 330, 8
DAYS = {"an afternoon": 0.5, "a week": 7, "three weeks": 18}  # of work; an afternoon also has the specification


def _policy() -> str:
    """The first piece of HCL."""
    found = re.search(r"^```hcl\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@pytest.mark.slow
def test_the_policy_boots_and_answers(tmp_path: Path) -> None:
    """As the page says: cut out, saved, served with the demo model; then a chat. Only the port is another."""
    if not (MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file():
        absent("no demo model: run `make demo`")
    text, count = re.subn(r"port = 8080\b", f"port = {_free_port()}", _policy())
    assert 1 == count
    (tmp_path / "first.hcl").write_text(text)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-m", "appliance", "serve", "first.hcl", "--json", "--models", str(MODELS)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=err,
                                   env=unmeasured() | {"PYTHONPATH": str(ROOT)})
    try:
        url = json.loads(waiting.until(
            lambda: next((line for line in written.lines(tmp_path / "err") if '"event": "ready"' in line), None)
            or (process.poll() is not None and "{}"), "server that is ready",
            lambda: waiting.processor_time(process.pid))).get("listening", [""])[0]
        assert url, (tmp_path / "err").read_text()
        answer = httpx.post(f"{url}/v1/chat/completions", timeout=600, headers={"authorization": f"Bearer {KEY}"},
                            json={"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]})
        assert (200, "assistant") == (answer.status_code, answer.json()["choices"][0]["message"]["role"])
    finally:
        process.terminate()
        process.wait()


def test_the_commands_beside_the_policy_are_the_ones_that_are_tested() -> None:
    """Its name, and the folder of the models."""
    assert ".venv/bin/appliance serve first.hcl --models build/models " in PAGE
    assert f"`{KEY}`" in PAGE


def _stated() -> dict[str, int]:
    """Lines of code by the time that reading takes."""
    rows = re.findall(r"^\| .* \| ([\d,]+) \| ([a-z ]+) \|$", PAGE, re.MULTILINE)
    return {time: int(lines.replace(",", "")) for lines, time in rows}


def _walked() -> list[Path]:
    """The way of a plain chat: what ARCHITECTURE shows, without other dialects and formats of calls, guesses by a
    second model, and the sweeps of an oblivious one."""
    rooms = ("http", "service/parts", "service/answering", "service/admission", "service/delivery", "api", "text",
             "engine/scheduler.py", "engine/handle.py", "engine/engine.py", "engine/batch", "engine/decode",
             "engine/forward", "kernels/runtime", "kernels/layouts", "kernels/code/step")
    left = ("api/responses", "api/anthropic", "text/calls", "engine/batch/head.py", "engine/batch/draft.py",
            "engine/decode/chain/sweeps", "engine/decode/chain/sweeping.py",
            "kernels/layouts/blind.py")
    package = ROOT / "appliance"
    for room in (*rooms, *left):
        assert (package / room).exists(), room
    found = [path for room in rooms
             for path in ((package / room).rglob("*.py") if "." not in room else [package / room])]
    return [path for path in found if not any(package / each in (path, *path.parents) for each in left)]


def test_reading_times_follow_from_the_sizes_of_today() -> None:
    """Each size is within a tenth of the code's, and can be read in its time."""
    counted = {
        "an afternoon": code_lines.count(ROOT / "examples/plain_engine.py"),
        "a week": sum(map(code_lines.count, _walked())),
        "three weeks": sum(map(code_lines.count, size.shipped().values())),
    }
    stated = _stated()
    assert set(DAYS) == set(stated)
    for time, lines in counted.items():
        assert abs(stated[time] - lines) <= lines / 10, (time, lines)
        assert stated[time] / LINES_AN_HOUR / HOURS_A_DAY <= DAYS[time], time
    assert f"reads {LINES_AN_HOUR} lines an hour" in " ".join(PAGE.split())
