"""One Python library against a service that runs: plain chat, streamed chat, other servers'
histories, 50 at once.

    python python_clients.py LIBRARY URL KEY MODEL

Runs in a virtual environment that has the libraries, and prints one line of JSON. Retries are off:
a refusal fails.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

QUESTION = [{"role": "user", "content": "Name a primary color."}]
BEFORE = {"role": "user", "content": "What is the capital of France?"}
AFTER = {"role": "user", "content": "And of Italy?"}
ANSWER = {"role": "assistant", "content": "Paris."}
PLAIN = [BEFORE, ANSWER, AFTER]
HISTORIES: dict[str, Any] = json.loads((Path(__file__).parent / "histories.json").read_text())
TOKENS, MANY, SECONDS = 8, 50, 300.0


class OpenAI:
    """The official library: messages go out as they are."""

    package = "openai"
    rewritten: frozenset[str] = frozenset()  # the library itself changes their text

    def __init__(self, url: str, key: str, model: str) -> None:
        import openai

        self._model = model
        self._client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=SECONDS)

    async def whole(self, turns: list[Any]) -> str:
        """The answer to a conversation."""
        answer = await self._client.chat.completions.create(
            model=self._model, messages=turns, max_tokens=TOKENS, temperature=0)
        return str(answer.choices[0].message.content)

    async def streamed(self, turns: list[Any]) -> str:
        """The same, streamed."""
        stream = await self._client.chat.completions.create(
            model=self._model, messages=turns, max_tokens=TOKENS, temperature=0, stream=True,
            stream_options={"include_usage": True})
        return "".join([event.choices[0].delta.content or "" async for event in stream if event.choices])

    def histories(self) -> dict[str, list[Any]]:
        """Conversations as other servers left them."""
        return {name: [BEFORE, answer, AFTER] for name, answer in HISTORIES.items()}


class LiteLLM(OpenAI):
    """LiteLLM, with the service as an OpenAI-compatible endpoint."""

    package = "litellm"

    def __init__(self, url: str, key: str, model: str) -> None:
        import litellm

        litellm.suppress_debug_info = True
        self._call = litellm.acompletion
        self._given = {"model": f"openai/{model}", "api_base": url, "api_key": key, "max_tokens": TOKENS,
                       "temperature": 0, "num_retries": 0, "max_retries": 0, "timeout": SECONDS}

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        answer = await self._call(messages=turns, **self._given)
        return str(answer.choices[0].message.content)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        stream = await self._call(messages=turns, stream=True, **self._given)
        return "".join([event.choices[0].delta.content or "" async for event in stream if event.choices])


class LangChain:
    """LangChain's `ChatOpenAI`."""

    package = "langchain-openai"
    rewritten: frozenset[str] = frozenset()

    def __init__(self, url: str, key: str, model: str) -> None:
        from langchain_openai import ChatOpenAI

        self._model: Any = ChatOpenAI(model=model, base_url=url, api_key=key, max_retries=0, timeout=SECONDS,
                                      temperature=0, max_tokens=TOKENS)

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return str((await self._model.ainvoke(turns)).text)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return "".join([str(part.text) async for part in self._model.astream(turns)])

    def histories(self) -> dict[str, list[Any]]:
        """Messages as LangChain's classes for other services make them."""
        from langchain_core.messages import AIMessage

        answers = {
            "DeepSeek": AIMessage("Paris.", additional_kwargs={"reasoning_content": "France.", "refusal": None},
                                  response_metadata={"model_name": "deepseek-reasoner"}, id="run-1"),
            "Ollama": AIMessage("Paris.", additional_kwargs={"reasoning_content": "France."},
                                response_metadata={"model": "qwen3", "done": True}),
            "text part": AIMessage([{"type": "text", "text": "Paris.", "annotations": [], "id": "msg_1"}]),
            "Anthropic with a cache": AIMessage([
                {"type": "text", "text": "Paris.", "cache_control": {"type": "ephemeral"}}]),
            "Anthropic with thoughts": AIMessage([
                {"type": "thinking", "thinking": "France.", "signature": "c2ln"}, {"type": "text", "text": "Paris."}])}
        return {name: [BEFORE, answer, AFTER] for name, answer in answers.items()}


class LlamaIndex:
    """LlamaIndex' `OpenAILike`."""

    package = "llama-index-llms-openai-like"
    rewritten: frozenset[str] = frozenset()

    def __init__(self, url: str, key: str, model: str) -> None:
        from llama_index.llms.openai_like import OpenAILike

        self._llm = OpenAILike(model=model, api_base=url, api_key=key, is_chat_model=True, max_retries=0,
                               timeout=SECONDS, temperature=0, max_tokens=TOKENS)

    @staticmethod
    def _messages(turns: list[Any]) -> list[Any]:
        from llama_index.core.llms import ChatMessage

        return [turn if isinstance(turn, ChatMessage) else ChatMessage(**turn) for turn in turns]

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return str((await self._llm.achat(self._messages(turns))).message.content)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return "".join([part.delta or "" async for part in await self._llm.astream_chat(self._messages(turns))])

    def histories(self) -> dict[str, list[Any]]:
        """Messages as LlamaIndex' classes for other services make them."""
        from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock

        answers = {
            "Anthropic with thoughts": ChatMessage(role="assistant", blocks=[
                ThinkingBlock(content="France.", additional_information={"signature": "c2ln"}),
                TextBlock(text="Paris.")]),
            "OpenAI": ChatMessage(role="assistant", content="Paris.", additional_kwargs={"refusal": None}),
            "vLLM": ChatMessage(role="assistant", content="Paris.", additional_kwargs={
                "reasoning_content": "France.", "annotations": []})}
        return {name: [BEFORE, answer, AFTER] for name, answer in answers.items()}


class PydanticAI:
    """Pydantic AI's agent on its OpenAI chat model."""

    package = "pydantic-ai-slim"
    rewritten = frozenset({"Anthropic with thoughts"})  # become <think> in the text

    def __init__(self, url: str, key: str, model: str) -> None:
        import openai
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=SECONDS)
        self._agent: Any = Agent(OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client)),
                                 model_settings={"temperature": 0, "max_tokens": TOKENS})

    @staticmethod
    def _history(turns: list[Any]) -> list[Any]:
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

        kinds = {"user": lambda text: ModelRequest(parts=[UserPromptPart(text)]),
                 "assistant": lambda text: ModelResponse(parts=[TextPart(text)])}
        return [kinds[turn["role"]](turn["content"]) if isinstance(turn, dict) else turn for turn in turns]

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        answer = await self._agent.run(turns[-1]["content"], message_history=self._history(turns[:-1]))
        return str(answer.output)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        async with self._agent.run_stream(turns[-1]["content"], message_history=self._history(turns[:-1])) as answer:
            return "".join([part async for part in answer.stream_text(delta=True, debounce_by=None)])

    def histories(self) -> dict[str, list[Any]]:
        """Responses as Pydantic AI's classes for other services make them."""
        from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart

        answers = {
            "Anthropic with thoughts": ModelResponse(parts=[
                ThinkingPart("France.", signature="c2ln", provider_name="anthropic"), TextPart("Paris.")]),
            "DeepSeek": ModelResponse(parts=[
                ThinkingPart("France.", id="reasoning_content", provider_name="openai"), TextPart("Paris.")],
                provider_name="openai")}
        return {name: [BEFORE, answer, AFTER] for name, answer in answers.items()}


LIBRARIES = {cls.package: cls for cls in (OpenAI, LiteLLM, LangChain, LlamaIndex, PydanticAI)}


async def check(client: Any) -> dict[str, str]:
    """What fails, by what was tried; an empty text for what works."""
    found: dict[str, str] = {}

    async def attempt(name: str, call: Any, wanted: str | None) -> str | None:
        try:
            answer = await call
            right = bool(answer.strip()) if wanted is None else answer == wanted
            found[name] = "" if right else f"wanted {wanted!r}, got {answer!r}"
        except Exception as error:  # noqa: BLE001 - of any library
            found[name] = traceback.format_exception_only(error)[-1].strip()[:500]
            return None
        return str(answer)

    alone = await attempt("whole", client.whole(QUESTION), None)
    await attempt("streamed", client.streamed(QUESTION), alone)
    plain = await attempt("history", client.whole(PLAIN), None)
    for name, turns in client.histories().items():
        await attempt(f"history of {name}", client.whole(turns), None if name in client.rewritten else plain)
    began = time.monotonic()
    answers = await asyncio.gather(*(client.whole(QUESTION) for _ in range(MANY)), return_exceptions=True)
    wrong = [str(answer)[:200] for answer in answers if answer != alone]
    found[f"{MANY} at once, {time.monotonic() - began:.0f} s"] = f"{len(wrong)} fail: {wrong[0]}" if wrong else ""
    return found


def main() -> int:
    """Check one library."""
    name, url, key, model = sys.argv[1:]
    found = asyncio.run(check(LIBRARIES[name](url, key, model)))
    print(json.dumps({"library": name, "version": importlib.metadata.version(name), "found": found}))
    return any(found.values())


if __name__ == "__main__":
    sys.exit(main())
