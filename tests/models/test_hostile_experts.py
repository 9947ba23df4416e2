"""Mixtures whose header lies about its experts: one clear error each, before memory is taken for them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.boot.planning.forecast import of_file
from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.families.tensors import roles_of
from appliance.models.file import gguf
from appliance.models.sealed.order import interleave_into
from appliance.models.sources import resident, tagged
from appliance.models.sources.streamed import StreamedSource
from tests.support import family_models
from tests.support.ggufs import Tensor, build, tensor_entry

GATE, UP, ROUTER = (f"blk.1.ffn_{part}.weight" for part in ("gate_exps", "up_exps", "gate_inp"))
GOOD, BIASED = family_models.model("qwen3moe"), family_models.model("gpt-oss")
BIAS = "blk.1.ffn_down_exps.bias"
Entries = dict[str, Tensor]


def _parts(data: bytes = GOOD) -> tuple[list[bytes], Entries]:
    """Keys and tensors of a file, with the offsets that it has."""
    parsed = gguf.parse(data)
    tensors = {name: Tensor(name, info.format.ggml_id, info.shape[::-1],
                            data[info.offset:info.offset + info.nbytes], info.offset - parsed.data_offset)
               for name, info in parsed.tensors.items()}
    return [key for _, key in gguf.keys(data)], tensors


def _with_tensor(which: str, data: bytes = GOOD, **changed: object) -> bytes:
    """A file with an entry of its table that says something else; the data stay where they are."""
    keys, tensors = _parts(data)
    tensors[which] = replace(tensors[which], **changed)  # type: ignore[arg-type]
    parsed, each = gguf.parse(data), [*tensors.values()]
    whole = build(keys, [Tensor(tensor.name, 0, (1,), b"", tensor.offset) for tensor in each])
    start = whole.index(tensor_entry(Tensor(each[0].name, 0, (1,), b""), each[0].offset or 0))
    table = b"".join(tensor_entry(tensor, tensor.offset or 0) for tensor in each)
    header = whole[:start] + table
    return header + bytes(-len(header) % parsed.alignment) + data[parsed.data_offset:]


def _with_number(key: str, value: int) -> bytes:
    """The file with another number (u32) at a key."""
    data = f"qwen3moe.{key}".encode()
    at = GOOD.index(struct.pack("<Q", len(data)) + data) + 8 + len(data) + 4
    return GOOD[:at] + struct.pack("<I", value) + GOOD[at + 4:]


def _gate() -> Tensor:
    return _parts()[1][GATE]


def _bias() -> tuple[int, ...]:
    return _parts(BIASED)[1][BIAS].dimensions


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "more experts than there are": (lambda: _with_number("expert_count", 13), r"has shape \(12, .*expected \(13, "),
    "fewer experts": (lambda: _with_number("expert_count", 11), r"has shape \(12, .*expected \(11, "),
    "no experts": (lambda: _with_number("expert_count", 0), "expert_count is 0"),
    "experts without end": (lambda: _with_number("expert_count", 2**32 - 1), "expert_count is 4294967295"),
    "more used than there are": (lambda: _with_number("expert_used_count", 13), "expert_used_count is 13"),
    "none used": (lambda: _with_number("expert_used_count", 0), "expert_used_count is 0"),
    "another width": (lambda: _with_number("expert_feed_forward_length", 128), r"expected \(12, 128, "),
    "a width of no block": (lambda: _with_number("expert_feed_forward_length", 100), "is 100"),
    "a run of fewer matrices": (
        lambda: _with_tensor(GATE, dimensions=(*_gate().dimensions[:2], 11)), r"has shape \(11, .*expected \(12, "),
    "a run without end": (
        lambda: _with_tensor(GATE, dimensions=(*_gate().dimensions[:2], 2**60)), f"the end of tensor '{GATE}'"),
    "a run of two dimensions": (
        lambda: _with_tensor(GATE, dimensions=(_gate().dimensions[0], 12 * _gate().dimensions[1])),
        "has shape|needed: a run"),
    "a run of four dimensions": (
        lambda: _with_tensor(GATE, dimensions=(*_gate().dimensions[:2], 3, 4)), "has shape|has 4 dimensions"),
    "rows and matrices exchanged": (
        lambda: _with_tensor(GATE, dimensions=(_gate().dimensions[0], 12, _gate().dimensions[1])), "has shape"),
    "a run that lies on another": (
        lambda: _with_tensor(GATE, offset=_parts()[1][UP].offset), "tensors may not overlap"),
    "a run beyond the file": (lambda: _with_tensor(UP, offset=2**40), f"the end of tensor '{UP}'"),
    "a run at no multiple": (lambda: _with_tensor(UP, offset=(_parts()[1][UP].offset or 0) + 1), "a multiple of 32"),
    "a router of fewer rows": (
        lambda: _with_tensor(ROUTER, dimensions=(_parts()[1][ROUTER].dimensions[0], 11)), r"expected \(12, "),
    "biases of fewer experts": (
        lambda: _with_tensor(BIAS, BIASED, dimensions=(_bias()[0], _bias()[1] - 1)), "has shape"),
    "biases of more rows than there are": (
        lambda: _with_tensor(BIAS, BIASED, dimensions=(_bias()[0] // 2, 2 * _bias()[1])), "has shape"),
    "biases in a row": (lambda: _with_tensor(BIAS, BIASED, dimensions=(_bias()[0] * _bias()[1],)), "has shape"),
    "biases as a run": (
        lambda: _with_tensor(BIAS, BIASED, dimensions=(*_bias(), 1)), "has shape|needed: a vector"),
    "biases in blocks": (
        lambda: _with_tensor(BIAS, BIASED, ggml_id=8), "is a vector of Q8_0"),
    "biases without end": (
        lambda: _with_tensor(BIAS, BIASED, dimensions=(_bias()[0], 2**60)), f"the end of tensor '{BIAS}'"),
    "experts by another name": (lambda: _with_tensor(GATE, name="blk.1.ffn_gate_exp.weight"), "is missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_error(case: str, tmp_path: Path) -> None:
    """By its header, resident and streamed, the file is refused, and the error names what is wrong."""
    make, text = CASES[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(make())
    pin = hashlib.sha256(path.read_bytes()).digest()
    fit = of_file(path)
    assert isinstance(fit.refusal, (FormatError, UnsupportedError))
    opens: tuple[Callable[[], object], ...] = (
        lambda: _raise(fit.refusal),
        lambda: resident.open_resident(path, pin, interleave=interleave_into, roles=roles_of),
        lambda: StreamedSource(tagged.open_tagged(path, pin, interleave=interleave_into), roles=roles_of))
    for opening in opens:
        with pytest.raises(ModelError, match=text) as caught:
            opening()
        assert len(caught.value.summary) < 2000


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def test_the_unchanged_file_runs(tmp_path: Path) -> None:
    """What the cases begin from is written again as it was."""
    assert _with_tensor(GATE) == GOOD
    (tmp_path / "m.gguf").write_bytes(GOOD)
    assert of_file(tmp_path / "m.gguf").runs
