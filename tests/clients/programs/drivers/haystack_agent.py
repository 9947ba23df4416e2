"""Haystack's agent of one tool, whole and streamed.

    python haystack_agent.py URL KEY MODEL
"""

import sys
from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

url, key, model = sys.argv[1:]
asked_for: list[str] = []


@tool
def get_weather(city: Annotated[str, "Which city."]) -> str:
    """The weather of a city."""
    asked_for.append(city)
    return f"It rains in {city}."


generator = OpenAIChatGenerator(api_key=Secret.from_token(key), model=model, api_base_url=f"{url}/v1",
                                generation_kwargs={"max_tokens": 200}, max_retries=0)
question = [ChatMessage.from_user("How is the weather in Paris?")]
parts: list[str] = []
for more in ({}, {"streaming_callback": lambda part: parts.append(part.content or "")}):
    agent = Agent(chat_generator=generator, tools=[get_weather], **more)
    last = agent.run(messages=question)["messages"][-1]
    assert "done" in str(last.text), last
assert "done" in "".join(parts), parts
assert asked_for == ["Paris"] * 4, asked_for
