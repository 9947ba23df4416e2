"""Anthropic's runner of tools: a conversation with calls, whole and streamed.

    python anthropic_runner.py URL KEY MODEL
"""

import sys

from anthropic import Anthropic, beta_tool

url, key, model = sys.argv[1:]
asked_for: list[str] = []


@beta_tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Which city.
    """
    asked_for.append(city)
    return f"It rains in {city}."


runner = Anthropic(base_url=url, api_key=key, max_retries=0).beta.messages.tool_runner
given = {"model": model, "max_tokens": 200, "tools": [get_weather],
         "messages": [{"role": "user", "content": "How is the weather in Paris?"}]}
whole = runner(**given).until_done()
assert "done" in whole.content[0].text, whole
last = None
for stream in runner(**given, stream=True):
    for _event in stream:
        pass
    last = stream.get_final_message()
assert "done" in last.content[0].text, last
assert asked_for == ["Paris"] * 4, asked_for
