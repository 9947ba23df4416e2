"""The examples of the guide to tools, each of which runs against a service by itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/guides/tools.md"
SAID = ("Paris", "Rome")  # one of them is printed by each example
SECONDS = 300
URL, KEY = "http://127.0.0.1:8080/v1", "sk-appliance-demo"  # of the examples

# Title of the section -> set of packages that its example needs; Node's are "node"
NEEDS = {
    "OpenAI": "libraries", "Pydantic AI": "libraries", "LangChain": "libraries", "LiteLLM": "libraries",
    "instructor": "agents", "OpenAI Agents": "agents", "smolagents": "agents", "llm": "agents",
    "LlamaIndex": "llama-index", "OpenAI for Node": "node", "AI SDK": "node"}


def examples() -> dict[str, str]:
    """The code of each section that has some, by title."""
    found = re.findall(r"(?ms)^## ([^\n]+)\n\n```(?:python|js)\n(.*?)^```$", PAGE.read_text())
    return dict(found)


def run(title: str, command: list[str], folder: Path, url: str, key: str = KEY) -> str:
    """What fails of an example, empty where it works. `command` runs the file that is its last argument."""
    name = "example.mjs" if NEEDS[title] == "node" else "example.py"
    (folder / name).write_text(examples()[title].replace(URL, url).replace(KEY, key))
    done = subprocess.run([*command, name], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode == 0 and any(word in done.stdout for word in SAID):
        return ""
    return f"exit {done.returncode}: {done.stdout[-300:]} {done.stderr[-500:]}"
