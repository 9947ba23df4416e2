"""Names of tensors: GGUF specification, section "Standardized tensor names"."""

from __future__ import annotations

EMBEDDING = "token_embd.weight"
PLACES = "position_embd.weight"
OUTPUT = "output.weight"
OUTPUT_BIAS = "output.bias"
OUTPUT_NORM = "output_norm.weight"
OUTPUT_NORM_BIAS = "output_norm.bias"
LAST_NORM = "token_embd_norm.weight"  # the norm of the output, in some families
ROPE_FACTORS = "rope_freqs.weight"  # one divisor per pair of a head (Llama 3)
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"  # (Phi-3)

# The matrices of a layer, in the order of their use. Each may have a bias vector of its row count.
QUERY, KEY, VALUE, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
MATRICES = (QUERY, KEY, VALUE, ATTENTION_OUTPUT, GATE, UP, DOWN)
FUSED = "attn_qkv"  # in place of the first three

# Of layers with experts: the router, the matrices of all experts as runs, and those of the expert
# that every row goes through.
ROUTER = "ffn_gate_inp"
EXPERT_GATE, EXPERT_UP, EXPERT_DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
SHARED_GATE, SHARED_UP, SHARED_DOWN = "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"
SHARED_SCALE = "ffn_gate_inp_shexp"  # a vector: the sigmoid of its product with a row scales the shared expert
EXPERT_GATE_UP = "ffn_gate_up_exps"  # in place of the first two of these
# Of experts beside a dense network: norms of what that gives, and of what experts get and give.
DENSE_RESULT_NORM, EXPERT_NORM, EXPERT_RESULT_NORM = "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"
SCALE = "scale"  # the ending of weights of the router's norm, and of a factor for each expert's weight
CHOICE_BIAS = "exp_probs_b"  # a bias: it is added to scores where experts are chosen
EXPERTS = (ROUTER, EXPERT_GATE, EXPERT_UP, EXPERT_DOWN)

# Of layers with a short convolution in place of attention: matrices before and after it, and its
# weights, a vector for each column.
CONVOLUTION_IN, CONVOLUTION, CONVOLUTION_OUT = "shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"
# Of layers with a delta rule: gates, rates and paces, or both of these in one matrix.
DELTA_GATE, RATE, PACE, BOTH = "attn_gate", "ssm_beta", "ssm_alpha", "ssm_ba"
# Of layers with a delta rule or Mamba-2: the first matrix of Mamba-2, the weights of the
# convolution, the norm of results, and the last matrix. Of their heads: addends of paces, decays of
# states, and how much of what they got goes past them.
STATE_IN, STATE_CONVOLUTION, STATE_NORM, STATE_OUT = "ssm_in", "ssm_conv1d", "ssm_norm", "ssm_out"
START, DECAY, SKIP = "ssm_dt", "ssm_a", "ssm_d"  # a bias; the others have no ending
VECTORS = frozenset({CONVOLUTION, STATE_CONVOLUTION, STATE_NORM, DECAY, SKIP})  # that may have two dimensions in a file

ATTENTION_NORM, SECOND_NORM, FEED_FORWARD_NORM = "attn_norm", "attn_norm_2", "ffn_norm"
RESULT_NORMS = ("post_attention_norm", "post_ffw_norm")  # of what attention and feed-forward network give
QUERY_NORM, KEY_NORM = "attn_q_norm", "attn_k_norm"
LAYER_SCALE = "layer_output_scale"
# Of a layer that guesses further tokens: the matrix that joins a token and the row before it, a
# norm of each; and what it may have of its own in place of the model's.
JOIN, TOKEN_NORM, ROW_NORM = "nextn.eh_proj", "nextn.enorm", "nextn.hnorm"
HEAD_EMBEDDING, HEAD_OUTPUT, HEAD_NORM = "nextn.embed_tokens", "nextn.shared_head_head", "nextn.shared_head_norm"
SINKS = "attn_sinks"  # a score for each head


def in_layer(index: int, part: str, kind: str = "weight") -> str:
    """The name of a tensor of layer `index`: `blk.3.attn_q.weight`. It has no ending where `kind`
    is empty."""
    return f"blk.{index}.{part}.{kind}" if kind else f"blk.{index}.{part}"
