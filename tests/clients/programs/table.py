"""The programs, one row each.

A row names the package that is pinned, the set of packages that it is installed with (a `NAME.lock` of pip or a folder
with npm's `package-lock.json`), what runs it, the model, the script that makes the model say something, and what must
be true afterwards. `version` is the one in the set's lock; the documentation names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.programs import commands, judging
from tests.clients.programs.relay import Script
from tests.clients.programs.scripts import calls, says

CITY, TWICE = {"city": "Paris"}, judging.called(2, twice=True)
THREADS = ("thread_not_found",)  # its runners continue a stored thread first, and send all messages where it is lost


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    package: str
    version: str
    place: str
    command: commands.Maker
    right: Callable[[judging.Outcome], str] = judging.ran
    model: str = "demo"
    script: Script | None = None
    title: str = ""  # in the documentation; the name by default
    expected: tuple[str, ...] = ()  # codes of refusals that it knows what to do with


PROGRAMS = (
    Program("codex", "@openai/codex", "0.171.0", "coding", commands.codex, judging.called(10), "tiny",
            calls("exec_command", 10, cmd="echo call {number}"), "Codex"),
    Program("claude-code", "@anthropic-ai/claude-code", "2.1.197", "coding", commands.claude_code, judging.called(10),
            "tiny", calls("Bash", 10, command="echo call {number}", description="Say it"), "Claude Code"),
    Program("opencode", "opencode-linux-x64", "1.18.33", "opencode", commands.opencode, judging.called(3), "tiny",
            calls("bash", 3, command="echo call {number}", description="Say it")),
    Program("qwen-code", "@qwen-code/qwen-code", "0.24.4", "qwen-code", commands.qwen_code, judging.called(3), "tiny",
            calls("run_shell_command", 3, command="echo call {number}", is_background=False), "Qwen Code"),
    Program("aider", "aider-chat", "0.86.2", "aider", commands.aider, judging.wrote, "demo", says(commands.EDIT)),
    Program("ai-sdk-openai", "@ai-sdk/openai", "3.0.141", "node", commands.node("@ai-sdk/openai by default"),
            title="AI SDK for OpenAI"),
    Program("ai-sdk-compatible", "@ai-sdk/openai-compatible", "2.0.92", "node",
            commands.node("@ai-sdk/openai-compatible"), title="AI SDK for compatible APIs"),
    Program("ai-sdk-anthropic", "@ai-sdk/anthropic", "3.0.140", "node", commands.node("@ai-sdk/anthropic"),
            title="AI SDK for Anthropic"),
    Program("anthropic-node", "@anthropic-ai/sdk", "1.10.0", "node", commands.runner, TWICE, "demo",
            calls("get_weather", 2, **CITY), "Anthropic for Node", THREADS),
    Program("anthropic", "anthropic", "2.10.0", "frameworks", commands.driver("anthropic_runner"), TWICE, "demo",
            calls("get_weather", 2, **CITY), "Anthropic for Python", THREADS),
    Program("guidellm", "guidellm", "0.8.1", "guidellm", commands.driver("guidellm_load")),
    Program("guidance", "guidance", "0.3.1", "frameworks", commands.driver("guidance_grammars")),
    Program("lm-eval", "lm-eval", "0.4.13", "lm-eval", commands.driver("lm_eval_remote")),
    Program("langgraph", "langgraph", "1.2.22", "frameworks", commands.driver("langgraph_agent"), TWICE, "demo",
            calls("get_weather", 2, **CITY), "LangGraph"),
    Program("crewai", "crewai", "1.15.30", "crewai", commands.driver("crewai_crew"), judging.called(2), "demo",
            calls("get_weather", 2, **CITY), "CrewAI"),
    Program("semantic-kernel", "semantic-kernel", "1.45.0", "semantic-kernel", commands.driver("semantic_kernel_agent"),
            TWICE, "demo", calls("Weather-get_weather", 2, **CITY), "Semantic Kernel"),
    Program("haystack", "haystack-ai", "3.4.1", "frameworks", commands.driver("haystack_agent"), TWICE, "demo",
            calls("get_weather", 2, **CITY), "Haystack"),
    Program("promptfoo", "promptfoo", "0.123.1", "promptfoo", commands.promptfoo, judging.evaluated),
)
BY_NAME = {row.name: row for row in PROGRAMS}
