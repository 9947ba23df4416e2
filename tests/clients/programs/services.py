"""The services that programs are tried against: one with the demo model, and one with room for the prompts of
coding agents, whose model is small and has random weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.server import Server, write_policy

CONTEXT = 131_072
LIMITS = ('request_size = "8MiB"\nconcurrent_requests = 8\nqueued_requests = 64\n'
          'first_token_timeout = "10m"\nanswer_timeout = "20m"\n')
TEMPLATE = (  # of a model that calls as Hermes does
    "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or "
    "[] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}[assistant]")


def _demo(folder: Path) -> Server:
    model = demo_model()
    policy = write_policy(folder, {"demo": model}, schema=2, limits=LIMITS + "prompt_tokens = 7000",
                          model="tokenization = true\nsampling { max_logprobs = 5 }")
    return Server(policy, [model])


def _tiny(folder: Path) -> Server:
    model = folder / "models" / "tiny.gguf"
    model.parent.mkdir()
    model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], CONTEXT))
    own = folder / "service"
    own.mkdir()
    policy = write_policy(
        own, {"tiny": model}, schema=2, limits=LIMITS + f"prompt_tokens = {CONTEXT - 4096}",
        model=f'context_length = {CONTEXT}\nchat_template = {json.dumps(TEMPLATE)}\n'
              'prefix_cache {\n size = "256MiB"\n lifetime = "1h"\n}')
    return Server(policy, [model])


MAKERS = {"demo": _demo, "tiny": _tiny}


@contextmanager
def serving(model: str) -> Iterator[Server]:
    """A service that is ready, with a model by its name."""
    with tempfile.TemporaryDirectory() as folder:
        server = MAKERS[model](Path(folder)).wait_ready()
        try:
            yield server
        finally:
            server.stop()
