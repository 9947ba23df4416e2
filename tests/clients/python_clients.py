"""One Python library against a service that runs: plain chat, streamed chat, other servers'
histories, tools, structured output, 50 at once.

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
from typing import Any, Literal

QUESTION = [{"role": "user", "content": "Name a primary color."}]
BEFORE = {"role": "user", "content": "What is the capital of France?"}
AFTER = {"role": "user", "content": "And of Italy?"}
ANSWER = {"role": "assistant", "content": "Paris."}
PLAIN = [BEFORE, ANSWER, AFTER]
HISTORIES: dict[str, Any] = json.loads((Path(__file__).parent / "histories.json").read_text())
TOKENS, MANY, SECONDS = 8, 50, 300.0
WEATHER = [{"role": "user", "content": "How is the weather in Paris for the next three days?"}]
CITIES, MOST = ("Paris", "Rome"), 200  # what a call may say, and tokens that it may take
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string", "enum": list(CITIES)},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"], "additionalProperties": False}
TOOL: dict[str, Any] = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}}
FLAT_TOOL: dict[str, Any] = {"type": "function", **TOOL["function"]}  # of the Responses API
ANTHROPIC_TOOL: dict[str, Any] = {
    "name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}


def reading() -> Any:
    """The same as a class, of which libraries make schemas of their own."""
    from pydantic import BaseModel, Field

    class Reading(BaseModel):
        """The weather that is asked for."""

        city: Literal["Paris", "Rome"]
        days: int = Field(ge=1, le=7)

    return Reading


def get_weather(city: Literal["Paris", "Rome"], days: int) -> str:
    """The weather of a city.

    Args:
        city: Which city.
        days: How many days.
    """
    return f"It rains in {city} for {days} days."


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

    def _forced(self) -> dict[str, Any]:
        return {"model": self._model, "messages": WEATHER, "tools": [TOOL], "tool_choice": "required",
                "parallel_tool_calls": False, "max_tokens": MOST, "temperature": 0}

    async def tools(self) -> dict[str, Any]:
        """What is called, by each way in which the library calls: the arguments, by the way's name."""
        create = self._client.chat.completions.create
        answer = await create(**self._forced())
        call = answer.choices[0].message.tool_calls[0]
        result = get_weather(**json.loads(call.function.arguments))
        turns = [*WEATHER, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": result}]
        after = await create(**{**self._forced(), "messages": turns, "tool_choice": "auto", "max_tokens": TOKENS})
        said = after.choices[0].message
        assert said.content or said.tool_calls or after.choices[0].finish_reason == "length"  # within a call
        name = {"type": "function", "function": {"name": "get_weather"}}
        text, stream = "", await create(**{**self._forced(), "tool_choice": name}, stream=True)
        async for event in stream:
            text += "".join(each.function.arguments for each in event.choices[0].delta.tool_calls or [])
        older = await create(model=self._model, messages=WEATHER, functions=[TOOL["function"]], max_tokens=MOST,
                             function_call={"name": "get_weather"})
        return {"required": json.loads(call.function.arguments), "named, streamed": json.loads(text),
                "older form": json.loads(older.choices[0].message.function_call.arguments)}

    async def structured(self) -> dict[str, Any]:
        """Objects by a schema, by each way in which the library asks for them."""
        import openai

        completions, asked = self._client.chat.completions, {
            "model": self._model, "messages": WEATHER, "max_tokens": MOST, "temperature": 0}
        form = {"type": "json_schema", "json_schema": {"name": "reading", "schema": SCHEMA, "strict": True}}
        answer = await completions.create(**asked, response_format=form)
        parsed = await completions.parse(**asked, response_format=reading())
        called = await completions.parse(**asked, tools=[openai.pydantic_function_tool(reading(), name="get_weather")],
                                         tool_choice="required", parallel_tool_calls=False)
        async with completions.stream(**asked, response_format=reading()) as stream:
            final = await stream.get_final_completion()
        return {"response_format": json.loads(answer.choices[0].message.content),
                "parse": parsed.choices[0].message.parsed.model_dump(),
                "parse of a tool": called.choices[0].message.tool_calls[0].function.parsed_arguments.model_dump(),
                "stream": final.choices[0].message.parsed.model_dump()}


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

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        forced = {**self._given, "messages": WEATHER, "tools": [TOOL], "tool_choice": "required", "max_tokens": MOST,
                  "parallel_tool_calls": False}
        answer = await self._call(**forced)
        events = [event async for event in await self._call(**forced, stream=True)]
        text = "".join(each.function.arguments or "" for event in events if event.choices
                       for each in event.choices[0].delta.tool_calls or [])
        return {"required": json.loads(answer.choices[0].message.tool_calls[0].function.arguments),
                "required, streamed": json.loads(text)}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        answer = await self._call(**{**self._given, "messages": WEATHER, "max_tokens": MOST,
                                     "response_format": reading()})
        return {"response_format": json.loads(answer.choices[0].message.content)}


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

    def _longer(self) -> Any:
        return self._model.model_copy(update={"max_tokens": MOST})

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        from langchain_core.messages import ToolMessage
        from langchain_core.tools import tool

        bound = self._longer().bind_tools([tool(get_weather)], tool_choice="any", parallel_tool_calls=False)
        answer = await bound.ainvoke(WEATHER)
        call = answer.tool_calls[0]
        result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
        assert await self._model.bind_tools([tool(get_weather)]).ainvoke([*WEATHER, answer, result])
        added: Any = None
        async for part in bound.astream(WEATHER):
            added = part if added is None else added + part
        return {"any": call["args"], "any, streamed": added.tool_calls[0]["args"]}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        return {method: (await self._longer().with_structured_output(reading(), method=method).ainvoke(WEATHER)
                         ).model_dump() for method in ("json_schema", "function_calling")}

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

        given = {"model": model, "api_base": url, "api_key": key, "is_chat_model": True, "max_retries": 0,
                 "timeout": SECONDS, "temperature": 0}
        self._llm = OpenAILike(**given, max_tokens=TOKENS)
        self._longer = OpenAILike(**given, max_tokens=MOST, is_function_calling_model=True)

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

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        from llama_index.core.tools import FunctionTool

        tool = FunctionTool.from_defaults(get_weather, fn_schema=reading())
        answer = await self._longer.achat_with_tools([tool], WEATHER[0]["content"], tool_required=True)
        [call, *_more] = self._longer.get_tool_calls_from_response(answer)
        stream = await self._longer.astream_chat_with_tools([tool], WEATHER[0]["content"], tool_required=True)
        last = [part async for part in stream][-1]
        [streamed, *_more] = self._longer.get_tool_calls_from_response(last)
        return {"required": call.tool_kwargs, "required, streamed": streamed.tool_kwargs}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        answer = await self._longer.as_structured_llm(reading()).achat(self._messages(WEATHER))
        return {"as_structured_llm": answer.raw.model_dump()}

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
        self._model = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))
        self._agent: Any = Agent(self._model, model_settings={"temperature": 0, "max_tokens": TOKENS})

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

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        from pydantic_ai import Agent

        agent: Any = Agent(self._model, output_type=reading(), model_settings={"temperature": 0, "max_tokens": MOST})
        async with agent.run_stream(WEATHER[0]["content"]) as answer:
            streamed = await answer.get_output()
        return {"output": (await agent.run(WEATHER[0]["content"])).output.model_dump(),
                "output, streamed": streamed.model_dump()}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        from pydantic_ai import Agent, NativeOutput

        agent: Any = Agent(self._model, output_type=NativeOutput(reading()),
                           model_settings={"temperature": 0, "max_tokens": MOST})
        return {"NativeOutput": (await agent.run(WEATHER[0]["content"])).output.model_dump()}

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


class Instructor(OpenAI):
    """instructor around the official client; plain chats go through that."""

    package = "instructor"

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        import instructor

        client = instructor.from_openai(self._client, mode=instructor.Mode.TOOLS)
        stream = client.create_partial(response_model=reading(), **self._asked())
        last = [each async for each in stream][-1]
        return {"TOOLS": (await client.create(response_model=reading(), **self._asked())).model_dump(),
                "TOOLS, partial": last.model_dump()}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        import instructor

        found = {}
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
            client = instructor.from_openai(self._client, mode=mode)
            found[mode.name] = (await client.create(response_model=reading(), **self._asked())).model_dump()
        return found

    def _asked(self) -> dict[str, Any]:
        return {"model": self._model, "messages": list(WEATHER), "max_tokens": MOST, "temperature": 0, "max_retries": 0}


class Agents(OpenAI):
    """OpenAI's agents, on their chat completions model."""

    package = "openai-agents"

    def __init__(self, url: str, key: str, model: str) -> None:
        super().__init__(url, key, model)
        from agents import OpenAIChatCompletionsModel, set_tracing_disabled

        set_tracing_disabled(True)
        self._served = OpenAIChatCompletionsModel(model=model, openai_client=self._client)

    def _agent(self, most: int = TOKENS, choice: str | None = None, **more: Any) -> Any:
        from agents import Agent, ModelSettings

        return Agent(name="Weather", model=self._served, model_settings=ModelSettings(
            temperature=0, max_tokens=most, tool_choice=choice, parallel_tool_calls=False if choice else None), **more)

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        from agents import Runner

        return str((await Runner.run(self._agent(), turns)).final_output)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        from agents import Runner

        result = Runner.run_streamed(self._agent(), turns)
        return "".join([event.data.delta async for event in result.stream_events()
                        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"])

    def histories(self) -> dict[str, list[Any]]:
        """Its items are those of the Responses API: a history is one that it made itself."""
        return {}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`. The tool's result is the agent's: this model might call for ever."""
        from agents import Runner, function_tool

        told: list[dict[str, Any]] = []

        def noted(city: Literal["Paris", "Rome"], days: int) -> str:
            told.append({"city": city, "days": min(max(days, 1), 7)})  # its schema has no bounds
            return get_weather(city, days)

        tool = function_tool(noted, name_override="get_weather", strict_mode=True)
        agent = self._agent(MOST, "required", tools=[tool], tool_use_behavior="stop_on_first_tool")
        assert str((await Runner.run(agent, WEATHER[0]["content"])).final_output)
        result = Runner.run_streamed(agent, WEATHER[0]["content"])
        async for _event in result.stream_events():
            pass
        return dict(zip(("required", "required, streamed"), told, strict=True))

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        from agents import Runner

        answer = await Runner.run(self._agent(MOST, output_type=reading()), WEATHER[0]["content"])
        return {"output_type": answer.final_output.model_dump()}


class Smolagents:
    """smolagents' `OpenAIModel`, and its agent that calls tools."""

    package = "smolagents"
    rewritten: frozenset[str] = frozenset()

    def __init__(self, url: str, key: str, model: str) -> None:
        from smolagents import OpenAIModel

        self._given = {"model_id": model, "api_base": url, "api_key": key, "temperature": 0, "client_kwargs": {
            "max_retries": 0, "timeout": SECONDS}}
        self._model = OpenAIModel(**self._given, max_tokens=TOKENS)
        self._longer = OpenAIModel(**self._given, max_tokens=MOST)

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return str((await asyncio.to_thread(self._model.generate, self._messages(turns))).content)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        parts = await asyncio.to_thread(lambda: list(self._model.generate_stream(self._messages(turns))))
        return "".join(part.content or "" for part in parts)

    @staticmethod
    def _messages(turns: list[Any]) -> list[Any]:
        from smolagents import ChatMessage

        return [ChatMessage(role=turn["role"], content=[{"type": "text", "text": turn["content"]}]) for turn in turns]

    def histories(self) -> dict[str, list[Any]]:
        """It has no classes for other services' messages."""
        return {}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`. An agent that runs a step or two does not fail, whatever this model says."""
        from smolagents import ToolCallingAgent, tool

        kept = tool(get_weather)
        answer = await asyncio.to_thread(lambda: self._longer.generate(
            self._messages(WEATHER), tools_to_call_from=[kept], tool_choice="required"))
        arguments = answer.tool_calls[0].function.arguments
        agent = ToolCallingAgent(tools=[kept], model=self._longer, max_steps=2, verbosity_level=0)
        assert await asyncio.to_thread(agent.run, WEATHER[0]["content"]) is not None
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {"required": {**found, "days": min(max(found["days"], 1), 7)}}  # its schema has no bounds

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        form = {"type": "json_schema", "json_schema": {"name": "reading", "schema": SCHEMA}}
        answer = await asyncio.to_thread(lambda: self._longer.generate(self._messages(WEATHER), response_format=form))
        return {"response_format": json.loads(answer.content)}


class LLM:
    """`llm`, with the service as one of its OpenAI-compatible models."""

    package = "llm"
    rewritten: frozenset[str] = frozenset()

    def __init__(self, url: str, key: str, model: str) -> None:
        from llm.default_plugins.openai_models import AsyncChat

        self._model: Any = AsyncChat(model, model_name=model, api_base=url, supports_schema=True, supports_tools=True)
        self._model.key = key

    async def _ask(self, turns: list[Any], most: int = TOKENS, **more: Any) -> str:
        conversation = self._model.conversation()
        if len(turns) > 1:  # it keeps what a model answered, so a history is asked for again
            return str(await conversation.prompt(turns[-1]["content"], max_tokens=most, temperature=0, **more).text())
        return str(await conversation.prompt(turns[0]["content"], max_tokens=most, temperature=0, **more).text())

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return await self._ask(turns, stream=False)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return await self._ask(turns)

    def histories(self) -> dict[str, list[Any]]:
        """It continues its own conversations only."""
        return {}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`. It cannot demand a call: a chain runs to its end, whatever this model says."""
        chain = self._model.chain(WEATHER[0]["content"], tools=[get_weather], options={"max_tokens": TOKENS})
        await chain.text()
        return {}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        return {name: json.loads(await self._ask(WEATHER, MOST, schema=SCHEMA, stream=stream))
                for name, stream in (("schema", False), ("schema, streamed", True))}


class Responses(OpenAI):
    """The official library's Responses API."""

    name = "openai responses"
    def _asked(self, turns: list[Any], most: int = TOKENS, **more: Any) -> dict[str, Any]:
        return {"model": self._model, "input": turns, "max_output_tokens": most, "temperature": 0, **more}

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return str((await self._client.responses.create(**self._asked(turns))).output_text)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        stream = await self._client.responses.create(**self._asked(turns), stream=True)
        return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

    def histories(self) -> dict[str, list[Any]]:
        """An answer's items, as OpenAI left them."""
        text = {"type": "output_text", "text": "Paris.", "annotations": [], "logprobs": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"}
        return {"OpenAI": [BEFORE, message, AFTER], "OpenAI with thoughts": [BEFORE, thought, message, AFTER]}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        forced = self._asked(WEATHER, MOST, tools=[FLAT_TOOL], tool_choice="required", parallel_tool_calls=False)
        answer = await self._client.responses.create(**forced)
        [call] = answer.output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
        turns = [*WEATHER, *answer.output, result]
        after = await self._client.responses.create(**self._asked(turns, tools=[FLAT_TOOL]))
        assert after.output
        named = {**forced, "tool_choice": {"type": "function", "name": "get_weather"}}
        async with self._client.responses.stream(**named) as stream:
            [streamed] = (await stream.get_final_response()).output
        return {"required": json.loads(call.arguments), "named, streamed": json.loads(streamed.arguments)}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        parsed = await self._client.responses.parse(**self._asked(WEATHER, MOST), text_format=reading())
        return {"parse": parsed.output_parsed.model_dump()}


class AgentsByDefault(Agents):
    """OpenAI's agents, on the model class that they have by default."""

    name = "openai-agents by default"

    def __init__(self, url: str, key: str, model: str) -> None:
        super().__init__(url, key, model)
        from agents import set_default_openai_client

        set_default_openai_client(self._client, use_for_tracing=False)
        self._served = model

    def _agent(self, most: int = MOST, choice: str | None = None, **more: Any) -> Any:
        """It takes no answer that `max_tokens` cuts, so answers here are whole."""
        return super()._agent(max(most, MOST), choice, **more)


class Anthropic(OpenAI):
    """Anthropic's library."""

    package = "anthropic"

    def __init__(self, url: str, key: str, model: str) -> None:
        import anthropic

        self._model = model
        self._messages = anthropic.AsyncAnthropic(
            base_url=url.removesuffix("/v1"), api_key=key, max_retries=0, timeout=SECONDS).messages

    def _of(self, turns: list[Any], most: int = TOKENS, **more: Any) -> dict[str, Any]:
        return {"model": self._model, "messages": turns, "max_tokens": most, "extra_body": {"temperature": 0}, **more}

    async def whole(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        return str((await self._messages.create(**self._of(turns))).content[0].text)

    async def streamed(self, turns: list[Any]) -> str:
        """See `OpenAI`."""
        async with self._messages.stream(**self._of(turns)) as stream:
            return "".join([text async for text in stream.text_stream])

    def histories(self) -> dict[str, list[Any]]:
        """Blocks, as Anthropic left them."""
        thought = {"type": "thinking", "thinking": "France.", "signature": "c2ln"}
        text = {"type": "text", "text": "Paris.", "citations": None}
        return {"Anthropic": [BEFORE, {"role": "assistant", "content": [text]}, AFTER],
                "Anthropic with thoughts": [BEFORE, {"role": "assistant", "content": [thought, text]}, AFTER]}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        forced = self._of(WEATHER, MOST, tools=[ANTHROPIC_TOOL], tool_choice={
            "type": "any", "disable_parallel_tool_use": True})
        answer = await self._messages.create(**forced)
        [call] = answer.content
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "It rains."}]}
        turns = [*WEATHER, {"role": "assistant", "content": answer.content}, result]
        assert (await self._messages.create(**self._of(turns, tools=[ANTHROPIC_TOOL]))).content
        named = {**forced, "tool_choice": {"type": "tool", "name": "get_weather"}}
        async with self._messages.stream(**named) as stream:
            [streamed] = (await stream.get_final_message()).content
        return {"any": call.input, "named, streamed": streamed.input}

    async def structured(self) -> dict[str, Any]:
        """See `OpenAI`."""
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        answer = await self._messages.create(**self._of(WEATHER, MOST, output_config=form))
        return {"output_config": json.loads(answer.content[0].text)}


class LiteLLMAnthropic(LiteLLM):
    """LiteLLM, with the service as Anthropic's; and its bridges from the two other APIs to chats."""

    name = "litellm as Anthropic"
    rewritten = frozenset(HISTORIES)

    def __init__(self, url: str, key: str, model: str) -> None:
        super().__init__(url, key, model)
        self._chat = dict(self._given)
        self._given |= {"model": f"anthropic/{model}", "api_base": url.removesuffix("/v1")}

    def histories(self) -> dict[str, list[Any]]:
        """Those of LiteLLM as OpenAI's are the same."""
        return {}

    async def tools(self) -> dict[str, Any]:
        """See `OpenAI`."""
        import litellm

        found = await super().tools()
        asked = {"model": self._chat["model"], "api_base": self._chat["api_base"], "api_key": self._chat["api_key"]}
        answer = await litellm.aresponses(
            **asked, input=WEATHER[0]["content"], max_output_tokens=MOST, tool_choice="required",
            tools=[FLAT_TOOL], parallel_tool_calls=False)
        found["responses"] = json.loads(answer.output[0].arguments)
        bridged = await litellm.anthropic.messages.acreate(
            **asked, messages=WEATHER, max_tokens=MOST, tools=[ANTHROPIC_TOOL], tool_choice={
                "type": "any", "disable_parallel_tool_use": True})
        # The bridge drops `disable_parallel_tool_use`, so there may be several.
        block, *_ = [each for each in bridged["content"] if each["type"] == "tool_use"]
        return {**found, "messages": block["input"]}


CLASSES = (OpenAI, LiteLLM, LangChain, LlamaIndex, PydanticAI, Instructor, Agents, Smolagents, LLM, Responses,
           AgentsByDefault, Anthropic, LiteLLMAnthropic)
LIBRARIES = {getattr(cls, "name", cls.package): cls for cls in CLASSES}


async def check(client: Any, many: int = MANY) -> dict[str, str]:
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

    async def objects(name: str, call: Any) -> None:
        try:
            for way, value in (await call).items():
                right = value["city"] in CITIES and 1 <= value["days"] <= 7 and value.keys() == {"city", "days"}
                found[f"{name} ({way})"] = "" if right else f"got {value!r}"
        except Exception as error:  # noqa: BLE001 - of any library
            found[name] = traceback.format_exception_only(error)[-1].strip()[:500]

    alone = await attempt("whole", client.whole(QUESTION), None)
    await attempt("streamed", client.streamed(QUESTION), alone)
    plain = await attempt("history", client.whole(PLAIN), None)
    for name, turns in client.histories().items():
        await attempt(f"history of {name}", client.whole(turns), None if name in client.rewritten else plain)
    await objects("tools", client.tools())
    await objects("structured", client.structured())
    began = time.monotonic()
    answers = await asyncio.gather(*(client.whole(QUESTION) for _ in range(many)), return_exceptions=True)
    wrong = [str(answer)[:200] for answer in answers if answer != alone]
    found[f"{many} at once, {time.monotonic() - began:.0f} s"] = f"{len(wrong)} fail: {wrong[0]}" if wrong else ""
    return found


def main() -> int:
    """Check one library."""
    name, url, key, model = sys.argv[1:]
    found = asyncio.run(check(LIBRARIES[name](url, key, model)))
    print(json.dumps({"library": name, "version": importlib.metadata.version(LIBRARIES[name].package), "found": found}))
    return any(found.values())


if __name__ == "__main__":
    sys.exit(main())
