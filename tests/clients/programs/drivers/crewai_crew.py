"""A crew of one agent that has one tool.

    python crewai_crew.py URL KEY MODEL
"""

import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

url, key, model = sys.argv[1:]
asked_for: list[str] = []


@tool("get_weather")
def get_weather(city: str) -> str:
    """The weather of a city."""
    asked_for.append(city)
    return f"It rains in {city}."


llm = LLM(model=f"openai/{model}", base_url=f"{url}/v1", api_key=key, max_tokens=200, temperature=0)
agent = Agent(role="Forecaster", goal="Tell the weather", backstory="You look at the sky.", tools=[get_weather],
              llm=llm, cache=False, max_iter=5)
task = Task(description="How is the weather in Paris?", expected_output="A sentence.", agent=agent)
answer = Crew(agents=[agent], tasks=[task], cache=False).kickoff()
assert "done" in answer.raw, answer.raw
assert asked_for, "the tool was not called"
