"""lm-eval with the service's own tokenizer: likelihoods of continuations and of whole texts, and generations.

    python lm_eval_remote.py URL KEY MODEL
"""

import math
import os
import sys

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

url, key, model = sys.argv[1:]
os.environ["OPENAI_API_KEY"] = key
CONTEXT = "The capital of France is"


def asked(kind: str, *arguments: tuple) -> list[Instance]:
    """Requests of a kind, as tasks make them."""
    return [Instance(request_type=kind, doc={}, arguments=each, idx=place) for place, each in enumerate(arguments)]


made = {"model": model, "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote", "auth_token": key,
        "max_retries": 1, "num_concurrent": 1}
lm = get_model("local-completions")(**made)
text = "Naïve façades – 12 \u00a0 “quotes” 日本語 🙂"
assert lm.tokenizer.decode(lm.tok_encode(text)) == text
assert lm.tokenizer.decode([lm.eot_token_id]) == lm.eos_string, (lm.eot_token_id, lm.eos_string)

until = {"until": ["\n"], "max_gen_toks": 6, "temperature": 0}
[best] = lm.generate_until(asked("generate_until", (CONTEXT, until)))
assert best, "nothing generated"
found = lm.loglikelihood(asked("loglikelihood", (CONTEXT, best), (CONTEXT, " purple zebras"), ("", "Paris")))
for value, _greedy in found:
    assert math.isfinite(value), found
    assert value <= 0, found
assert found[0][1], f"{best!r} was generated greedily, and is not greedy: {found[0]}"
assert found[0][0] > found[1][0], found
assert not found[1][1], found
[whole] = lm.loglikelihood_rolling(asked("loglikelihood_rolling", ("The sky is blue.",)))
assert math.isfinite(whole), whole
several = get_model("local-completions")(**{**made, "batch_size": 2})
again = several.loglikelihood(asked("loglikelihood", (CONTEXT, best), (CONTEXT, " purple zebras"), ("", "Paris")))
assert again == found, (again, found)

chat = get_model("local-chat-completions")(**{**made, "base_url": f"{url}/v1/chat/completions",
                                              "tokenizer_backend": None})
turns = chat.apply_chat_template([{"role": "user", "content": "Name a color."}])
[said] = chat.generate_until(asked("generate_until", (turns, until)))
assert said, "nothing said"
