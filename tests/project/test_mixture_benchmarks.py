"""The arithmetic of benchmarks with mixtures of experts: models, bounds, and the decoder of traces."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors
from appliance.models.file import gguf as own_gguf
from benchmarks import decryption, mixture_models, mixtures, traces


def test_a_mixture_is_well_formed(tmp_path: Path) -> None:
    """Another reader finds every tensor with its type and shape."""
    reader = gguf.GGUFReader(mixture_models.make("small", 1, tmp_path))
    found = {tensor.name: (tensor.tensor_type, tensor.shape.tolist()[::-1]) for tensor in reader.tensors}
    assert found == {name: (kind, list(size)) for name, size, kind in mixture_models.tensors(
        mixture_models.SHAPES["small"], 1)}


@pytest.mark.parametrize("name", mixture_models.SHAPES)
def test_our_engine_takes_each_shape(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header and the tensors fit the family's card: so weights of these shapes would run."""
    monkeypatch.setattr(mixture_models, "_values", lambda *_: None)
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", lambda *_: None)
    found = own_gguf.parse(mixture_models.make(name, 1, tmp_path).read_bytes(), 1 << 40)
    assert check_tensors(architecture_of(found.metadata, found.tensors), found.tensors)


def test_bytes_that_a_token_needs() -> None:
    """Of Qwen3-30B-A3B a token uses 3.3 of 30.5 thousand million weights; its own card says so."""
    shape = mixture_models.SHAPES["qwen3-30b-a3b"]
    sizes = [(name, int(np.prod(size))) for name, size, _ in mixture_models.tensors(shape, shape.layers)]
    experts = sum(count for name, count in sizes if name.endswith("_exps.weight"))
    assert sum(count for _, count in sizes) == pytest.approx(30.5e9, rel=0.005)
    assert sum(count for _, count in sizes) - experts * 15 // 16 == pytest.approx(3.3e9, rel=0.02)
    total, of_experts = mixtures.needed(shape, shape.layers)
    assert of_experts == experts // 16 * 144 // 256
    assert total == of_experts + sum(  # router in F32, output in Q6_K, attention in Q4_K
        count * (4 if "gate_inp" in name else 210 / 256 if name == "output.weight" else 144 / 256)
        for name, count in sizes if "exps" not in name and "norm" not in name and name != "token_embd.weight")


@pytest.mark.parametrize("compiled", [False, True])
def test_decryption_is_measured_by_right_tags(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message that is timed is authenticated, so a rate is that of real work."""
    monkeypatch.setattr(decryption, "ROOM", 1 << 20)
    found = decryption.Decryption(1 << 16, 2, compiled=compiled)
    assert found.rate(0.05) > 0
    tiles = found._each[1]
    tiles._memory[0] ^= 1
    tiles._at = 0
    with pytest.raises((RuntimeError, InvalidTag)):
        tiles.open()


def _trained(values: np.ndarray, tokens: np.ndarray) -> float:
    rows, count = traces.around(values), len(tokens) * 3 // 4 * traces.LENGTH
    decoder, y = traces.Decoder(rows.shape[1], traces.WORDS), tokens.reshape(-1)
    decoder.train(rows[:count], y[:count])
    return decoder.right(rows[count:], y[count:])


def test_the_decoder_reads_what_is_there() -> None:
    """Traces that name half of the words are read; without anything in them it knows no more than frequencies."""
    _, tokens = np.unique(traces.texts(120), return_inverse=True)
    tokens = tokens.reshape(120, traces.LENGTH)
    told = np.where(tokens[..., None] == np.arange(0, traces.WORDS, 2), 1, 0).astype(np.float32)
    most = (tokens[90:] == np.bincount(tokens[:90].reshape(-1)).argmax()).mean()
    assert _trained(told, tokens) > most + 0.2
    assert _trained(told[..., :0], tokens) <= most + traces.POINT


def test_features_leave_out_what_never_differs() -> None:
    """Equal traces have no columns; order and number of touches are columns where they differ."""
    same = [[(4096, 8192)] * traces.LENGTH] * 3
    assert (3, traces.LENGTH, 0) == traces.features(same).shape
    turned = [[(4096, 8192)] * traces.LENGTH, [(8192, 4096)] * traces.LENGTH]
    assert traces.features(turned).shape[2] == 2
    assert traces.features([[(4096,)] * traces.LENGTH, [(4096, 4096)] * traces.LENGTH]).shape[2] == 1
