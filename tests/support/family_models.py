"""A small model of each family, made from its card: shapes of tensors follow from the product's table, values from a
seed. A row of MODELS says what its header has beside the common dimensions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from appliance.families.architecture import Architecture
from appliance.families.header import architecture_of
from appliance.families.table import FAMILIES
from appliance.families.tensors import is_vector, optional_shapes, required_shapes
from appliance.models.file.quants import FORMATS
from tests.support.ggufs import BOOL, F32, I32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.quantisers import quantise

CONTEXT, VOCABULARY = 512, 420
COMMON: dict[str, Any] = {"block_count": 4, "context_length": CONTEXT, "embedding_length": 128,
                          "feed_forward_length": 288, "attention.head_count": 6, "attention.head_count_kv": 2,
                          "attention.key_length": 32, "attention.value_length": 32, "vocab_size": VOCABULARY}
MIXTURE = {"expert_count": 12, "expert_used_count": 3, "expert_feed_forward_length": 96}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "leading_dense_block_count": 1}
DELTA = {"rope.freq_base": 1e7, "rope.dimension_sections": [6, 5, 5, 0], "attention.key_length": 64,
         "attention.value_length": 64, "rope.dimension_count": 32, "full_attention_interval": 2, "ssm.conv_kernel": 4,
         "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128}
MAMBA = {"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 1, "ssm.inner_size": 256,
         "ssm.time_step_rank": 8, "rope.scaling.finetuned": False}
WINDOW = {"attention.sliding_window": 24}
# All keys of YaRN that llama.cpp's converter writes. It reads other betas only in mistral3.
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_ext_factor": 1.0, "rope.scaling.yarn_attn_factor": 1.0,
        "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}
# Family -> what its header says beside COMMON; None takes a key away. A name with a dot is another model of the family.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"rope.freq_base": 1e6, "attention.head_count": 4},
    "qwen3": {"rope.freq_base": 1e6, "attention.key_length": 48, "attention.value_length": 48},
    "qwen3.large": {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 320,
                    "attention.value_length": 320},
    "qwen3moe": {**MIXTURE, "rope.freq_base": 1e6},
    "llama.experts": {"expert_count": 8, "expert_used_count": 2, "attention.head_count": 4},
    "qwen2moe": {**MIXTURE, "attention.head_count": 4, "expert_shared_feed_forward_length": 64},
    "olmoe": {"expert_count": 20, "expert_used_count": 4, "feed_forward_length": 96, "attention.head_count": 4,
              "attention.head_count_kv": 4},
    "granitemoe": {"expert_count": 12, "expert_used_count": 3, "feed_forward_length": 96, "embedding_scale": 6.0,
                   "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1},
    "granitemoe.shared": {"expert_count": 12, "expert_used_count": 3, "feed_forward_length": 96,
                          "embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1,
                          "expert_shared_feed_forward_length": 160},
    "glm4moe": {**MIXTURE, **SIGMOID, "attention.head_count": 4, "attention.key_length": 64,
                "attention.value_length": 64, "rope.dimension_count": 32, "expert_shared_count": 1,
                "expert_group_count": 1, "expert_group_used_count": 1, "expert_weights_scale": 1.5,
                "nextn_predict_layers": 0},
    "glm4moe.large": {**MIXTURE, **SIGMOID, "attention.key_length": 64, "attention.value_length": 64,
                      "rope.dimension_count": 32, "expert_shared_count": 2, "nextn_predict_layers": 1,
                      "block_count": 5},
    "ernie4_5-moe": {**MIXTURE, "rope.freq_base": 5e5, "expert_shared_count": 2,
                     "expert_shared_feed_forward_length": 192, "leading_dense_block_count": 1,
                     "interleave_moe_layer_step": 1},
    "bailingmoe2": {**MIXTURE, **SIGMOID, "expert_count": 16, "expert_used_count": 4, "expert_group_count": 4,
                    "expert_group_used_count": 2, "expert_weights_scale": 2.5, "expert_shared_count": 1,
                    "expert_shared_feed_forward_length": 96, "attention.key_length": 64,
                    "attention.value_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1,
                    "rope.dimension_count": 32, "nextn_predict_layers": 0},
    "gemma3": {**WINDOW, "block_count": 7, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
               "rope.scaling.factor": 8.0, "rope.freq_base_swa": 10000.0},
    "gemma4": {**WINDOW, "block_count": 6, "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0,
               "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 32,
               "attention.value_length_swa": 32, "rope.dimension_count": 64, "rope.dimension_count_swa": 32,
               "attention.head_count_kv": [2, 2, 2, 2, 2, 1], "final_logit_softcapping": 30.0,
               "attention.sliding_window_pattern": [True] * 5 + [False], "attention.shared_kv_layers": 0,
               "embedding_length_per_layer_input": 0},
    "gemma4.experts": {**MIXTURE, **WINDOW, "block_count": 3, "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0,
                       "attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count": 32,
                       "rope.dimension_count_swa": 32, "attention.sliding_window_pattern": [True, True, False],
                       "embedding_length_per_layer_input": 0, "final_logit_softcapping": 30.0},
    "phi3": {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 32,
             "rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.19},
    "phi3.part": {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 64,
                  "attention.value_length": 64, "rope.dimension_count": 48},
    "phi2": {"attention.head_count": 2, "attention.head_count_kv": 2, "attention.key_length": 64,
             "attention.value_length": 64, "rope.dimension_count": 32},
    "gpt2": {"attention.head_count": 4, "attention.head_count_kv": 4},
    "mistral3": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.dimension_count": 32,
                 "rope.scaling.original_context_length": 32, "attention.temperature_scale": 0.1,
                 "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0,
                 "rope.scaling.yarn_log_multiplier": 1.0},
    "granite": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1},
    "granite.unturned": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1,
                         "rope.scaling.finetuned": False},
    "smollm3": {"rope.freq_base": 2e6},
    "olmo2": {"attention.head_count": 4, "attention.head_count_kv": 4},
    "olmo2.windows": {**WINDOW, "attention.head_count": 4, "attention.head_count_kv": 4, "block_count": 4,
                      "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                      "rope.scaling.original_context_length": 128},
    "exaone4": {"attention.head_count": 4},
    # llama.cpp gives windows only to models of 64 layers.
    "exaone4.windows": {**WINDOW, "block_count": 64, "attention.head_count": 2, "attention.head_count_kv": 1,
                        "embedding_length": 64, "feed_forward_length": 96},
    "glm4": {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 32,
             "attention.head_count": 4},
    "falcon": {"attention.head_count": 4, "attention.head_count_kv": 1},
    "falcon.second": {"attention.head_count": 4, "attention.head_count_kv": 2},
    "starcoder2": {"attention.head_count": 4},
    "command-r": {"attention.head_count": 4, "logit_scale": 0.5},
    "cohere2": {**WINDOW, "attention.head_count": 4, "logit_scale": 0.5, "rope.scaling.type": "none"},
    "gemma": {"attention.key_length": 48, "attention.value_length": 48},
    "qwen2vl": {"attention.head_count": 4, "rope.freq_base": 1e6, "rope.dimension_sections": [4, 6, 6, 0]},
    "qwen3vl": {"rope.freq_base": 5e6, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3},
    "qwen3vlmoe": {**MIXTURE, "rope.freq_base": 5e6, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3},
    "glm4.sections": {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 32,
                      "attention.head_count": 4, "rope.dimension_sections": [4, 6, 6, 0]},
    "seed_oss": {"rope.freq_base": 1e7},
    "gpt-oss": {**MIXTURE, **WINDOW, **YARN, "rope.freq_base": 150000.0, "rope.scaling.original_context_length": 4096},
    "ernie4_5": {"rope.freq_base": 5e5},
    "minicpm": {"attention.head_count": 4, "embedding_scale": 6.0, "residual_scale": 0.35, "logit_scale": 2.0},
    "minicpm.long": {"attention.head_count": 4, "embedding_scale": 6.0, "residual_scale": 0.35, "logit_scale": 2.0,
                     "rope.scaling.type": "longrope"},
    "lfm2": {"rope.freq_base": 1e6, "attention.head_count": 4, "attention.head_count_kv": [0, 0, 2, 0],
             "shortconv.l_cache": 3},
    "lfm2.wide": {"rope.freq_base": 1e6, "attention.head_count": 4, "attention.head_count_kv": [2, 0, 0, 1],
                  "shortconv.l_cache": 5},
    "lfm2moe": {**MIXTURE, "rope.freq_base": 1e6, "attention.head_count": 4, "expert_gating_func": 2,
                "attention.head_count_kv": [0, 2, 0, 0], "leading_dense_block_count": 1, "shortconv.l_cache": 3},
    "qwen35": {**DELTA, "attention.head_count": 4},
    "qwen35.shared": {**DELTA, "full_attention_interval": 4, "ssm.group_count": 1, "ssm.time_step_rank": 3,
                      "ssm.state_size": 64, "ssm.inner_size": 192},
    "qwen35moe": {**MIXTURE, **DELTA, "expert_shared_feed_forward_length": 64},
    "qwen35moe.guessing": {**MIXTURE, **DELTA, "expert_shared_feed_forward_length": 64, "block_count": 5,
                           "nextn_predict_layers": 1, "feed_forward_length": None},
    "qwen3next": {**MIXTURE, **DELTA, "expert_shared_feed_forward_length": 64, "rope.dimension_sections": None},
    "arcee": {"attention.head_count": 4},
    "nemotron": {"attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 64,
                 "attention.value_length": 64, "rope.dimension_count": 32, "rope.scaling.type": "none"},
    "granitehybrid": {**MAMBA, "attention.head_count_kv": [0, 2, 0, 0], "embedding_scale": 6.0, "residual_scale": 0.22,
                      "logit_scale": 2.0, "attention.scale": 0.1, "expert_count": 0, "expert_used_count": 0,
                      "expert_shared_feed_forward_length": 288},
    "granitehybrid.experts": {**MAMBA, "attention.head_count_kv": [0, 2, 0, 0], "embedding_scale": 6.0,
                              "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1, "expert_count": 12,
                              "expert_used_count": 3, "feed_forward_length": 96,
                              "expert_shared_feed_forward_length": 160},
    "nemotron_h": {**MAMBA, "ssm.group_count": 2, "block_count": 6, "attention.head_count_kv": [0, 0, 2, 0, 0, 0],
                   "feed_forward_length": [0, 288, 0, 288, 0, 288], "attention.layer_norm_epsilon": 1e-5},
    "nemotron_h_moe": {**MIXTURE, **MAMBA, "ssm.group_count": 2, "block_count": 5,
                       "attention.head_count_kv": [0, 0, 0, 2, 0], "feed_forward_length": [0, 96, 0, 0, 96],
                       "expert_shared_count": 1, "expert_shared_feed_forward_length": 64, "expert_weights_norm": True,
                       "expert_weights_scale": 2.5, "expert_group_count": 1, "attention.layer_norm_epsilon": 1e-5},
    # As the converter writes Granite 4 without experts and states.
    "granite.four": {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1,
                     "attention.head_count_kv": [2, 2, 2, 2], "expert_count": 0, "expert_used_count": 0,
                     "expert_shared_feed_forward_length": 288, "ssm.conv_kernel": 4, "ssm.state_size": 256,
                     "ssm.group_count": 1, "ssm.inner_size": 256, "ssm.time_step_rank": 16,
                     "rope.scaling.finetuned": True},
    "olmo2.magnitude": {**WINDOW, **YARN, "attention.head_count": 4, "attention.head_count_kv": 4,
                        "rope.freq_base": 5e5, "rope.freq_base_swa": 5e5,
                        "rope.scaling.yarn_attn_factor": 1.138629436111989,
                        "attention.sliding_window_pattern": [True, True, True, False]},
    # Families with a window: with YaRN, and without a window.
    "gemma3.yarn": {**WINDOW, **YARN, "block_count": 7, "rope.freq_base": 1e6},
    "gemma3.windowless": {**YARN, "block_count": 7, "rope.freq_base": 1e6},
    "olmo2.windowless": {**YARN, "attention.head_count": 4, "attention.head_count_kv": 4},
    "exaone4.windowless": {**YARN, "attention.head_count": 4},
    "phi3.windowless": {**YARN, "attention.head_count": 4},
    "mistral3.windowless": {**YARN, "rope.dimension_count": 32, "rope.scaling.yarn_beta_fast": 16.0,
                            "rope.scaling.yarn_beta_slow": 2.0},
    "starcoder2.windowless": {**YARN, "attention.head_count": 4},
}
MODELS |= {f"{name}.yarn": {**MODELS[base], **YARN} for name, base in (
    ("exaone4", "exaone4.windows"), ("cohere2", "cohere2"), ("gemma4", "gemma4"))}
# Models for what llama.cpp leaves out or does in another way: `transformers` judges them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama.wide": {"embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 8},  # of any blocks
    "llama.plain": {"attention.head_count": 4}, "exaone4.plain": {"attention.head_count": 4},
    "gemma3.plain": {**MODELS["gemma3"], "attention.head_count": 4}, "gemma4.plain": MODELS["gemma4"],
    **{f"{name}.plain": MODELS[name] for name in ("qwen2", "granite", "smollm3", "mistral3", "command-r")},
    "phi3.short": {**MODELS["phi3"], "context_length": 256}, "phi3.long": MODELS["phi3"],
    "phi3.window": {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 32, **WINDOW},
    "phi2.own": {"embedding_length": 2560, "feed_forward_length": 10240, "attention.head_count": 32,
                 "attention.head_count_kv": 32, "attention.key_length": 80, "attention.value_length": 80,
                 "rope.dimension_count": 32, "block_count": 1},
    "starcoder2.window": {**MODELS["starcoder2"], **WINDOW},
    "gpt-oss.fractions": {**MODELS["gpt-oss"], "rope.scaling.original_context_length": 64},
}
NOT_THERE = {"glm4moe": ("attn_q_norm", "attn_k_norm"),
             "falcon": ("attn_norm_2",), "phi3.part": ("rope_factors",), "phi3.window": ("rope_factors",),
             "phi3.windowless": ("rope_factors",), "minicpm": ("rope_factors",),
             **dict.fromkeys(("cohere2", "cohere2.yarn"), ("output.weight",)), "gemma": ("output.weight",),
             "command-r": ("output.weight",), "command-r.plain": ("output.weight", ".bias"),
             "qwen2.plain": ("output.bias",), **{f"{name}.plain": (".bias",) for name in (
                 "llama", "granite", "smollm3", "mistral3")}}
FUSED_EXPERTS = ("gemma4.experts",)  # models whose experts have gate and up in one
# Models that get factors of frequencies.
FACTORED = ("llama", "exaone4", "gemma4", "gemma4.experts", "gemma4.plain", "gemma4.yarn")
UNTURNED = 1e30  # a factor of pairs that llama.cpp's converter leaves unturned, three quarters of those of Gemma 4


def metadata(name: str) -> dict[str, Any]:
    """The keys of a model's header, without the tokenizer's."""
    family = name.partition(".")[0]
    epsilon = f"attention.layer_norm{'_rms' if FAMILIES[family].norm == 'rms' else ''}_epsilon"
    found = {**COMMON, epsilon: 1e-5, **({**MODELS, **PUBLISHED}[name])}
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in found.items()
                                               if value is not None}}


def architecture(name: str) -> Architecture:
    """The architecture of a model."""
    return architecture_of(metadata(name))


def header_key(key: str, value: Any) -> bytes:
    """Write one key of a header, with the type that its value has."""
    if isinstance(value, list):
        kind = BOOL if isinstance(value[0], bool) else U32
        return kv_array(key, kind, value)
    kinds = {bool: BOOL, int: U32, float: F32, str: STRING}
    return kv(key, kinds[type(value)], value)


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Tensors of a model: all that it must have, and those of its options that it has here."""
    made, family = architecture(name), name.partition(".")[0]
    fused = [f"blk.{index}.ffn_gate_up_exps.weight" for index in range(made.layers)] if name in FUSED_EXPERTS else []
    shapes = dict(required_shapes(made, fused))
    for tensor, shape in optional_shapes(made, shapes):
        left = ("attn_qkv",) if "qkv" not in FAMILIES[family].fused else ()
        if tensor == "rope_freqs.weight" and name not in FACTORED:
            continue
        if any(part in tensor for part in (*left, *NOT_THERE.get(name, ()))):
            continue
        if tensor.endswith("attn_v.weight") and int(tensor.split(".")[1]) == made.layers - 1:
            continue  # the keys of the last layer are its values
        shapes[tensor] = shape
    for tensor, shape in list(shapes.items()):  # a layer that is left out has what others have, and more
        if made.left_out and tensor.startswith(f"blk.{made.layers - 1}."):
            shapes[tensor.replace(f"blk.{made.layers - 1}.", f"blk.{made.layers}.")] = shape
    if made.left_out:
        width = made.embedding
        shapes |= {f"blk.{made.layers}.nextn.{part}.weight": shape for part, shape in (
            ("eh_proj", (width, 2 * width)), ("enorm", (width,)), ("hnorm", (width,)))}
    return shapes


@functools.cache
def model(name: str, formats: tuple[str, ...] = ("Q8_0", "F16", "Q4_0"), *, tied: bool = False,
          more: tuple[bytes, ...] = ()) -> bytes:
    """The GGUF file of a model of MODELS. `formats`: of its matrices, in turn; `more`: other keys."""
    random = np.random.default_rng([11, *name.encode()])
    tensors, number = [], 0
    for tensor, shape in _shapes(name).items():
        if tied and tensor == "output.weight":
            continue
        if is_vector(tensor, shape) or tensor == "position_embd.weight":
            values = _vector(tensor, shape, random)
            if name == "gemma4.plain" and tensor == "rope_freqs.weight":
                values = np.where(np.arange(shape[0]) < shape[0] // 4, 1.0, UNTURNED)
            tensors.append(Tensor(tensor, 0, shape[::-1], values.astype(np.float32).tobytes()))
            continue
        kind = next(kind for kind in (*formats[number % len(formats):], *formats, "F16")
                    if shape[-1] % FORMATS[kind].elements == 0)
        number += 1
        deviation = {"token_embd.weight": 1.0, "output.weight": 3 / shape[-1]**0.5}.get(tensor, 1.2 / shape[-1]**0.5)
        weights = (random.standard_normal(shape) * deviation).astype(np.float32)
        data = quantise(kind, weights.reshape(-1, shape[-1]))
        tensors.append(Tensor(tensor, FORMATS[kind].ggml_id, shape[::-1], data))
    keys = [header_key(key, value) for key, value in metadata(name).items()]
    return build([*keys, *tokenizer_keys(), *more], tensors)


def _vector(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if "rope_f" in name:
        return np.clip(np.arange(shape[0]) - 4, 1, 8) + (0.5 if "long" in name else 0.0)
    noise = random.standard_normal(shape)
    if name.endswith("attn_sinks.weight"):
        return noise * 2
    if name.endswith("ffn_gate_inp.scale"):
        return (1 + noise / 5) * shape[0]**0.5
    if name.endswith("exp_probs_b.bias"):
        return noise / 8
    if "ffn_gate_inp_shexp" in name:
        return noise / shape[0]**0.5
    if name.endswith("ssm_a"):
        return -np.exp(noise - 1)
    if name.endswith(("shortconv.conv.weight", "ssm_conv1d.weight")):
        return noise / shape[1]**0.5
    if name.endswith(".bias") or name == "position_embd.weight":
        return noise / 4
    return 1 + noise / 5


def tokenizer_keys() -> list[bytes]:
    """Write a vocabulary of VOCABULARY tokens."""
    words = [f"▁w{i}" for i in range(VOCABULARY - 259)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    return [kv("tokenizer.ggml.model", STRING, "llama"), kv_array("tokenizer.ggml.tokens", STRING, tokens),
            kv_array("tokenizer.ggml.scores", F32, [0.0 - i for i in range(VOCABULARY)]),
            kv_array("tokenizer.ggml.token_type", I32, [2, 3, 3] + [6] * 256 + [1] * (VOCABULARY - 259)),
            kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
            kv("tokenizer.ggml.unknown_token_id", U32, 0), kv("tokenizer.ggml.add_bos_token", BOOL, True)]


def prompts(count: int = 12) -> list[list[int]]:
    """Prompts of 1 to 90 random tokens; the same for all models."""
    random = np.random.default_rng(12)
    lengths = [1, 5, 17, 40, 64, 90, *random.integers(2, 60, count).tolist()][:count]
    return [[1, *random.integers(3, VOCABULARY, length).tolist()] for length in lengths]
