"""guidance's class for vLLM: a choice, a pattern, an object by a schema, and a whole grammar.

    python guidance_grammars.py URL KEY MODEL
"""

import json
import re
import sys

import guidance
from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel

url, key, model = sys.argv[1:]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
                                           "days": {"type": "integer", "minimum": 1, "maximum": 7}},
          "required": ["city", "days"], "additionalProperties": False}
lm = VLLMModel(model=model, base_url=f"{url}/v1", api_key=key, echo=False)


def answered(grammar: object) -> str:
    """The text that a grammar captures under `it`."""
    with user():
        asked = lm + "Which city has the Louvre, and how many days does one need?"
    with assistant():
        asked += grammar
    return str(asked["it"])


SENTENCE = "In " + select(["Paris", "Rome"], name="it") + " for " + gen("days", regex=r"[1-7]") + " days."
assert answered(select(["Paris", "Rome"], name="it")) in ("Paris", "Rome")
assert re.fullmatch(r"[1-7]", answered(gen("it", regex=r"[1-7]")))
assert answered(SENTENCE) in ("Paris", "Rome")
found = json.loads(answered(guidance.json("it", schema=SCHEMA)))
assert found["city"] in ("Paris", "Rome"), found
assert 1 <= found["days"] <= 7, found
for _again in range(4):
    assert answered(gen("it", max_tokens=8))
