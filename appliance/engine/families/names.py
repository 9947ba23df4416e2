"""Names of tensors: GGUF specification, section "Standardized tensor names"."""

from __future__ import annotations

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
OUTPUT_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"  # one divisor per pair of a head (Llama 3)

# The matrices of a layer, in the order of their use. Each may have a bias vector of its row count.
QUERY, KEY, VALUE, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
MATRICES = (QUERY, KEY, VALUE, ATTENTION_OUTPUT, GATE, UP, DOWN)
NORMS = ("attn_norm", "ffn_norm")


def in_layer(index: int, part: str, kind: str = "weight") -> str:
    """The name of a tensor of layer `index`: `blk.3.attn_q.weight`."""
    return f"blk.{index}.{part}.{kind}"
