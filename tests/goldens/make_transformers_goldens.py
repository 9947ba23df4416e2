"""Makes tests/goldens/transformers.npz: float32 logits of small models of each family, by `transformers`.

    .venv/bin/python -m tests.goldens.make_transformers_goldens write FOLDER
    OTHER/bin/python tests/goldens/make_transformers_goldens.py run FOLDER tests/goldens/transformers.npz [NAME ...]

With names of models, those alone are made anew. The first writes the GGUF files of `tests.support.family_models` in
float32. The second needs an environment of its own with torch, transformers (5.24) and gguf, and nothing of this
repository. It makes a configuration of each header, gives the publisher's code the weights under the names of
llama.cpp's converter (`gguf.get_tensor_name_map`), undoes what that converter does to them, and keeps the logits after
some tokens of a fixed text. Not in transformers, or not as llama.cpp's converter writes it: see `MODELS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

TOKENS = [1, *((37 * i + 11 * i * i + 5) % 417 + 3 for i in range(299))]
KEPT = (0, 7, 23, 24, 39)
"""Positions whose logits are kept; of models in LONG also the last."""
LONG = ("phi3.long",)
FORMATS = {"phi2.own": ("F16",)}
"""Of matrices, where that is not F32."""
Arrays = dict[str, np.ndarray]
Config = dict[str, Any]


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head as the publisher has them: the converter puts the two halves' rows in turns."""
    shape = weight.shape
    return weight.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def turns(weights: Arrays, config: Config) -> None:
    """Of llama and its kin: queries and keys."""
    for name in weights:
        heads = {"attn_q.": "num_attention_heads", "attn_k.": "num_key_value_heads"}
        for part, key in heads.items():
            if part in name:
                weights[name] = _permuted(weights[name], config[key])


def _less_one(weights: Arrays, config: Config) -> None:
    """Of Gemma 3: weights of norms, less the 1 that the converter adds."""
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] = weights[name] - 1


def _columns_first(weights: Arrays, config: Config) -> None:
    """Of GPT-2: its modules take matrices transposed."""
    for name in weights:
        if name.endswith(".weight") and name.startswith("blk.") and weights[name].ndim == 2:
            weights[name] = weights[name].T.copy()


def _by_groups(weights: Arrays, config: Config) -> None:
    """Of Falcon 40B: queries, key and value of a group lie together; the converter puts all queries first."""
    if not config.get("new_decoder_architecture"):
        return
    heads, groups = config["num_attention_heads"], config["num_kv_heads"]
    for name in weights:
        if "attn_qkv" in name:
            parts = weights[name].reshape(heads + 2 * groups, -1, weights[name].shape[-1])
            query, key, value = np.split(parts, [heads, heads + groups])
            query = query.reshape(groups, heads // groups, *query.shape[1:])
            weights[name] = np.concatenate([query, key[:, None], value[:, None]], axis=1).reshape(weights[name].shape)


def nothing(weights: Arrays, config: Config) -> None:
    """The publisher's own order."""


Header = Callable[..., Any]
Family = tuple[str, Callable[[Arrays, Config], None], Callable[[Header, int], Config]]
"""A class of the publisher's code, what undoes the converter, and what its configuration has beside the common keys."""


def rope(get: Header, **more: Any) -> Config:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": get("rope.freq_base", 10000.0), **more}}


def _kinds(get: Header, count: int, every: int) -> Config:
    """Layers with a window, and each `every`-th without."""
    window = get("attention.sliding_window")
    kinds = ["full_attention" if window is None or (index + 1) % every == 0 else "sliding_attention"
             for index in range(count)]
    return {"layer_types": kinds, "sliding_window": window}


def partial(get: Header) -> float:
    return get("rope.dimension_count", get("attention.key_length")) / get("attention.key_length")


def yarn(get: Header) -> Config:
    return {"rope_type": "yarn", "factor": get("rope.scaling.factor"),
            "original_max_position_embeddings": get("rope.scaling.original_context_length")}


FAMILIES: dict[str, Family] = {
    "llama": ("Llama", turns, lambda get, n: rope(get)),
    "qwen2": ("Qwen2", nothing, lambda get, n: rope(get)),
    "qwen3": ("Qwen3", nothing, lambda get, n: rope(get)),
    "gemma3": ("Gemma3", _less_one, lambda get, n: {
        **_kinds(get, n, 6), "query_pre_attn_scalar": get("attention.key_length"), "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": get("rope.scaling.factor"),
                               "rope_theta": get("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": get("rope.freq_base_swa")}}}),
    "gemma4": ("Gemma4", nothing, lambda get, n: {
        **_kinds(get, n, 6), "num_key_value_heads": get("attention.head_count_kv")[0],
        "num_global_key_value_heads": get("attention.head_count_kv")[-1], "attention_k_eq_v": True,
        "head_dim": get("attention.key_length_swa"), "global_head_dim": get("attention.key_length"),
        "hidden_size_per_layer_input": 0, "final_logit_softcapping": get("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                               "rope_theta": get("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": get("rope.freq_base_swa")}}}),
    "phi3": ("Phi3", nothing, lambda get, n: {"sliding_window": get("attention.sliding_window"), **rope(
        get, partial_rotary_factor=partial(get))}),
    "phi2": ("Phi", nothing, lambda get, n: rope(get, partial_rotary_factor=partial(get))),
    "gpt2": ("GPT2", _columns_first, lambda get, n: {
        "n_embd": get("embedding_length"), "n_layer": n, "n_head": get("attention.head_count"),
        "n_inner": get("feed_forward_length"), "n_positions": get("context_length")}),
    "mistral3": ("Ministral3", turns, lambda get, n: rope(
        get, **yarn(get), beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
        llama_4_scaling_beta=get("attention.temperature_scale"))),
    "granite": ("Granite", turns, lambda get, n: {**rope(get), "embedding_multiplier": get("embedding_scale"),
                "residual_multiplier": get("residual_scale"), "logits_scaling": get("logit_scale"),
                "attention_multiplier": get("attention.scale")}),
    "smollm3": ("SmolLM3", turns, lambda get, n: {
        **rope(get), "no_rope_layers": [int((index + 1) % 4 != 0) for index in range(n)]}),
    "olmo2": ("Olmo2", nothing, lambda get, n: rope(get)),
    "olmo3": ("Olmo3", nothing, lambda get, n: {**_kinds(get, n, 4), "rope_parameters": {
        "full_attention": rope(get, **yarn(get))["rope_parameters"],
        "sliding_attention": rope(get)["rope_parameters"]}}),
    "exaone4": ("Exaone4", nothing, lambda get, n: {
        **_kinds(get, n, 4), "sliding_window_pattern": "LLLG", **rope(get)}),
    "glm4": ("Glm4", nothing, lambda get, n: {"attention_bias": True, **rope(
        get, partial_rotary_factor=partial(get))}),
    "falcon": ("Falcon", _by_groups, lambda get, n: {
        **rope(get), "num_kv_heads": get("attention.head_count_kv"), "multi_query": True, "parallel_attn": True,
        "new_decoder_architecture": get("attention.head_count_kv") > 1, "alibi": False, "bias": False,
        "ffn_hidden_size": get("feed_forward_length"), "activation": "gelu_new"}),
    "starcoder2": ("Starcoder2", nothing, lambda get, n: {
        "sliding_window": get("attention.sliding_window"), "norm_epsilon": 1e-5, **rope(get)}),
    "command-r": ("Cohere", nothing, lambda get, n: {
        "logit_scale": get("logit_scale"), **rope(get)}),
}
UNMAPPED = {"experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.gate_up_proj_bias": "ffn_gate_up_exps.bias",
            "experts.down_proj": "ffn_down_exps.weight", "experts.down_proj_bias": "ffn_down_exps.bias",
            "block_sparse_moe.router.weight": "ffn_gate_inp.weight", "e_score_correction_bias": "exp_probs_b.bias",
            "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
            "shared_mlp.input_linear.weight": "ffn_gate_up_shexp.weight", "linear_attn.dt_bias": "ssm_dt.bias",
            "linear_attn.A_log": "ssm_a"}
# Model of `tests.support.family_models` -> family of FAMILIES, where it is not the name's.
MODELS = {**dict.fromkeys((
    "llama.plain", "qwen2.plain", "qwen3", "gemma3.plain", "gemma4.plain", "phi3.short", "phi3.long", "phi3.window",
    "phi3.part", "phi2", "phi2.own", "gpt2", "mistral3.plain", "granite.plain", "smollm3.plain", "olmo2",
    "exaone4.plain", "glm4", "falcon.second", "falcon", "starcoder2", "starcoder2.window", "command-r.plain")),
    "olmo2.windows": "olmo3"}


def _configuration(get: Header, reader: Any, extra: Callable[[Header, int], Config], weights: Arrays) -> Config:
    count = get("block_count")
    epsilon = get("attention.layer_norm_rms_epsilon", get("attention.layer_norm_epsilon"))
    found = {"hidden_size": get("embedding_length"), "num_hidden_layers": count, "vocab_size": 420,
             "num_attention_heads": get("attention.head_count"), "intermediate_size": get("feed_forward_length"),
             "num_key_value_heads": get("attention.head_count_kv"), "head_dim": get("attention.key_length"),
             "max_position_embeddings": get("context_length"), "rms_norm_eps": epsilon, "layer_norm_eps": epsilon,
             "layer_norm_epsilon": epsilon, "tie_word_embeddings": "output.weight" not in weights,
             "attn_implementation": "eager", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    found.update(extra(get, count))
    if "n_embd" in found or "num_kv_heads" in found:  # whose heads are what is left of the width
        del found["head_dim"]
    factors = [weights.get(f"rope_factors_{kind}.weight") for kind in ("short", "long")]
    if factors[0] is not None:
        found["rope_parameters"].update(
            rope_type="longrope", short_factor=factors[0].tolist(), long_factor=factors[1].tolist(),
            attention_factor=get("rope.scaling.attn_factor"),
            original_max_position_embeddings=get("rope.scaling.original_context_length"))
        found["original_max_position_embeddings"] = get("rope.scaling.original_context_length")
    return found


def logits(path: Path, family: Family, positions: Sequence[int]) -> np.ndarray:
    """Float32 (positions, 420) of one file."""
    import gguf
    import torch

    reader = gguf.GGUFReader(path)
    weights = {each.name: np.array(each.data, np.float32) for each in reader.tensors}
    architecture = reader.get_field("general.architecture").contents()

    def get(key: str, default: Any = None) -> Any:
        field = reader.get_field(f"{architecture}.{key}")
        return default if field is None else field.contents()

    name, undo, extra = family
    config = _configuration(get, reader, extra, weights)
    undo(weights, config)
    network = _network(name, config).eval().float()
    names = gguf.get_tensor_name_map({value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture],
                                     get("block_count"))
    _fill(network, weights, names, path.name)
    with torch.no_grad():
        found = network(torch.tensor([TOKENS[:max(positions) + 1]]), use_cache=False).logits[0]
    return found[list(positions)].numpy()


def _network(name: str, config: Config) -> Any:
    """The publisher's network. What also sees has one for texts, without the matrix of logits."""
    import torch
    import transformers

    if not hasattr(transformers, f"{name}TextModel") or hasattr(transformers, f"{name}ForCausalLM"):
        kinds = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
                 "Qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
                 "Qwen3_5Moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
                 "Gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM"), "GPT2": ("GPT2Config", "GPT2LMHeadModel")}
        made, model = kinds.get(name, (f"{name}Config", f"{name}ForCausalLM"))
        return getattr(transformers, model)(getattr(transformers, made)(**config))

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            made = getattr(transformers, f"{name}TextConfig")(**config)
            self.model = getattr(transformers, f"{name}TextModel")(made)
            self.lm_head = torch.nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

        def forward(self, tokens: Any, **options: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=self.lm_head(self.model(tokens, **options).last_hidden_state))

    return Text()


def _fill(network: Any, weights: Arrays, names: Any, file: str) -> None:
    """Give a network the weights of a file, each of which it must take."""
    import torch

    state, used = network.state_dict(), set()
    for key, value in state.items():
        found = _unmapped(key) or names.get_name(key, try_suffixes=(".weight", ".bias"))
        found = found if found in weights else f"{found}.weight"  # of a number without a suffix, as Gemma 4 has them
        if found in weights:
            used.add(found)
            state[key] = torch.from_numpy(weights[found].reshape(value.shape))
        elif key != "lm_head.weight" or "output.weight" in weights:
            raise SystemExit(f"{file}: {key} is {found} in the file, which has it not")
    left = {name for name in weights if name not in used and not name.startswith("rope_f")}
    if left:
        raise SystemExit(f"{file}: nobody takes {sorted(left)}")
    if "output.weight" not in weights:
        state.pop("lm_head.weight", None)
    network.load_state_dict(state, strict=False)
    network.tie_weights() if "output.weight" not in weights else None


def _unmapped(key: str) -> str | None:
    """The name of what the converter names in code, and not by its map."""
    block, _, part = key.removeprefix("model.layers.").partition(".")
    found = next((name for ending, name in UNMAPPED.items() if part.endswith(ending)), None)
    return found and f"blk.{block}.{found}"


def main(action: str, folder: str, target: str = "", *names: str) -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import family_models

        for name in MODELS:
            (Path(folder) / f"{name}.gguf").write_bytes(family_models.model(name, FORMATS.get(name, ("F32",))))
        return
    if unknown := set(names) - set(MODELS):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such model; allowed: {', '.join(MODELS)}")
    found = dict(np.load(target)) if names else {}
    for name, family in MODELS.items():
        if names and name not in names:
            continue
        positions = (*KEPT, len(TOKENS) - 1) if name in LONG else KEPT
        found[name] = logits(Path(folder) / f"{name}.gguf", FAMILIES[family or name.partition(".")[0]], positions)
        print(name, found[name].std())
    np.savez_compressed(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
