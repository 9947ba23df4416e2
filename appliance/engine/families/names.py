"""Names of tensors: GGUF specification, section "Standardized tensor names"."""

from __future__ import annotations

EMBEDDING = "token_embd.weight"
PLACES = "position_embd.weight"
OUTPUT = "output.weight"
OUTPUT_BIAS = "output.bias"
OUTPUT_NORM = "output_norm.weight"
OUTPUT_NORM_BIAS = "output_norm.bias"
ROPE_FACTORS = "rope_freqs.weight"  # one divisor per pair of a head (Llama 3)
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"  # (Phi-3)

# The matrices of a layer, in the order of their use. Each may have a bias vector of its row count.
QUERY, KEY, VALUE, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
MATRICES = (QUERY, KEY, VALUE, ATTENTION_OUTPUT, GATE, UP, DOWN)
FUSED = "attn_qkv"  # in place of the first three

ATTENTION_NORM, SECOND_NORM, FEED_FORWARD_NORM = "attn_norm", "attn_norm_2", "ffn_norm"
RESULT_NORMS = ("post_attention_norm", "post_ffw_norm")  # of what attention and feed-forward network give
QUERY_NORM, KEY_NORM = "attn_q_norm", "attn_k_norm"
LAYER_SCALE = "layer_output_scale"


def in_layer(index: int, part: str, kind: str = "weight") -> str:
    """The name of a tensor of layer `index`: `blk.3.attn_q.weight`."""
    return f"blk.{index}.{part}.{kind}"
