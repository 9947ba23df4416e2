"""Makes tests/goldens/heads.npz: float32 logits of layers that guess, by `transformers`.

    .venv/bin/python -m tests.goldens.make_head_goldens write FOLDER
    OTHER/bin/python -m tests.goldens.make_head_goldens run FOLDER tests/goldens/heads.npz

`transformers` leaves these layers out. So the publisher's network is made twice: once of the model, whose residual rows
before the last norm are taken, and once of a single layer with the weights of the one that guesses. Between them are
two of the publisher's norms and one product, as `docs/formats/arithmetic.md` has it. The rest is as in
`make_mixture_goldens`: keys and values are rounded to 16 bits, and an unclear choice of experts is refused. One choice
of glm4moe is nearer than what is allowed there; its logits agree all the same.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens import make_delta_goldens as deltas
from tests.goldens import make_mixture_goldens as mixtures
from tests.goldens import make_transformers_goldens as dense
from tests.goldens.make_transformers_goldens import TOKENS, Arrays, Family

KEPT = (0, 1, 7, 15, 24, 31)
"""Positions whose logits are kept."""
CLEAR = 0.0005
"""The least distance of choices, as in `make_mixture_goldens`."""
NAMES = {"qwen35.guessing": deltas.FAMILIES["qwen35"], "qwen35moe.guessing": deltas.FAMILIES["qwen35moe"],
         "glm4moe": mixtures.FAMILIES["glm4moe"]}
ONE = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "first_k_dense_replace": 0}


def _norm(network: Any, weight: np.ndarray, rows: Any) -> Any:
    """Rows by a norm of the kind that a network ends in."""
    import copy

    import torch

    norm = copy.deepcopy(network.model.norm)
    norm.weight.data = torch.from_numpy(weight)
    return norm(rows)


def _guessing(weights: Arrays, layer: int) -> Arrays:
    """The weights of a model of one layer: of the one that guesses."""
    own, found = f"blk.{layer}.", dict[str, np.ndarray]()
    for name, value in weights.items():
        if name.startswith(own):
            found[name.replace(own, "blk.0.")] = value
        elif name in ("token_embd.weight", "output.weight"):
            found[name] = value
    found["output_norm.weight"] = found.pop("blk.0.nextn.shared_head_norm.weight")
    return found


def logits(path: Path, family: Family) -> np.ndarray:
    """Float32 (positions, 420): what the layer says of the token after the next."""
    import gguf
    import torch

    reader = gguf.GGUFReader(path)
    weights = {each.name: np.array(each.data, np.float32) for each in reader.tensors}
    architecture = reader.get_field("general.architecture").contents()

    def get(key: str, default: Any = None) -> Any:
        field = reader.get_field(f"{architecture}.{key}")
        return default if field is None else field.contents()

    kinds = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], get("block_count"))
    own = _guessing({name: value.copy() for name, value in weights.items()}, get("block_count") - 1)
    rows, networks = list[Any](), list[Any]()
    for more, arrays in (({}, weights), (ONE, own)):
        config = dense._configuration(get, reader, family[2], arrays) | more
        family[1](arrays, config)
        parts = {name: arrays.pop(name) for name in list(arrays) if ".nextn." in name}
        networks.append(dense._network(family[0], config).eval().float())
        dense._fill(networks[-1], arrays, names, path.name)
    trunk, head = networks
    trunk.model.norm.register_forward_pre_hook(lambda _, given: rows.append(given[0]))
    with torch.no_grad():
        trunk(torch.tensor([TOKENS[:KEPT[-1] + 1]]), use_cache=False)
        known = torch.from_numpy(weights["token_embd.weight"])[torch.tensor([TOKENS[1:KEPT[-1] + 2]])]
        both = torch.cat([_norm(trunk, parts["blk.0.nextn.enorm.weight"], known),
                          _norm(trunk, parts["blk.0.nextn.hnorm.weight"], rows[0])], dim=-1)
        joined = both @ torch.from_numpy(parts["blk.0.nextn.eh_proj.weight"]).T
        found = head(inputs_embeds=joined, use_cache=False).logits[0]
    return found[list(KEPT)].numpy()


def main(action: str, folder: str, target: str = "") -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import delta_models, mixture_models

        for name in NAMES:
            model = mixture_models.model if name in mixture_models.MODELS else delta_models.model
            (Path(folder) / f"{name}.gguf").write_bytes(model(name))
        return
    found = {}
    for name, family in NAMES.items():
        with mixtures._choices() as distances, mixtures._rounded(family[0]):
            found[name] = logits(Path(folder) / f"{name}.gguf", family)
        print(f"{name}: deviation {found[name].std():.3f}, least distance {min(distances, default=1):.5f}")
        if min(distances, default=1) < CLEAR:
            raise SystemExit(f"{name}: a choice of experts is unclear, at {min(distances)}; allowed: {CLEAR}")
    np.savez_compressed(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
