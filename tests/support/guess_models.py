"""A small model of the family qwen35 whose last layer guesses as the model itself goes on.

The layers add little to a token's row, and the last one passes the token's row on: so both give nearly the same logits.
"""

from __future__ import annotations

import functools

import numpy as np

from tests.support import delta_models
from tests.support.family_models import header_key, tokenizer_keys
from tests.support.ggufs import Tensor, build

NAME = "qwen35.guessing"
LITTLE = 0.02  # of what a layer would add


def values(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 numbers of a tensor."""
    found = delta_models.values(NAME, tensor, shape)
    if tensor.endswith("nextn.eh_proj.weight"):
        found = np.eye(*shape, dtype=np.float32)
    elif tensor.endswith("nextn.enorm.weight"):
        found = np.ones(shape, np.float32)
    elif tensor.endswith("nextn.shared_head_norm.weight"):
        found = delta_models.values(NAME, "output_norm.weight", shape)
    elif tensor.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
        found = found * np.float32(LITTLE)
    return found


@functools.cache
def model(_: str = NAME) -> bytes:
    """Its GGUF file."""
    tensors = [Tensor(tensor, 0, shape[::-1], values(tensor, shape).tobytes())
               for tensor, shape in delta_models.shapes(NAME).items()]
    keys = delta_models.metadata(NAME).items()
    return build([*(header_key(key, value) for key, value in keys), *tokenizer_keys()], tensors)
