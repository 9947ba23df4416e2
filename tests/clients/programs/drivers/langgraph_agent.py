"""LangGraph's agent of one tool, whole and streamed.

    python langgraph_agent.py URL KEY MODEL
"""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

url, key, model = sys.argv[1:]
asked_for: list[str] = []


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    asked_for.append(city)
    return f"It rains in {city}."


agent = create_react_agent(ChatOpenAI(model=model, base_url=f"{url}/v1", api_key=key, max_retries=0, max_tokens=200),
                           [get_weather])
question = {"messages": [("user", "How is the weather in Paris?")]}
last = agent.invoke(question)["messages"][-1]
assert "done" in last.content, last
parts = [part for part, _about in agent.stream(question, stream_mode="messages")]
assert "done" in "".join(str(part.content) for part in parts), parts
assert asked_for == ["Paris"] * 4, asked_for
