"""Semantic Kernel's agent with a plugin of one function, whole and streamed.

    python semantic_kernel_agent.py URL KEY MODEL
"""

import asyncio
import sys

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

url, key, model = sys.argv[1:]
asked_for: list[str] = []


class Weather:
    """The plugin."""

    @kernel_function(description="The weather of a city.")
    def get_weather(self, city: str) -> str:
        """Say it."""
        asked_for.append(city)
        return f"It rains in {city}."


async def main() -> None:
    """Ask twice."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
    agent = ChatCompletionAgent(service=service, name="Forecaster", instructions="Tell the weather.",
                                plugins=[Weather()])
    whole = await agent.get_response("How is the weather in Paris?")
    assert "done" in str(whole), whole
    parts = [str(part.content) async for part in agent.invoke_stream("How is the weather in Paris?")]
    assert "done" in "".join(parts), parts
    assert asked_for == ["Paris"] * 4, asked_for


asyncio.run(main())
