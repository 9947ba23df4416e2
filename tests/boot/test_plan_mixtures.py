"""The plan of a mixture: what is kept first, what a token reads, and a line that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.boot.planning import budget, residency
from appliance.boot.planning.footprint import Share, known_roles
from appliance.boot.planning.rates import Rates
from appliance.boot.planning.speed import Speed, speeds
from appliance.cli.main import main
from appliance.models.catalogue import Catalogue
from appliance.models.file import gguf
from appliance.models.file.tiling import Tiling
from appliance.policy import load
from tests.support import family_models, server

DATA = family_models.model("qwen3moe")  # 3 of 12 experts
HEADER = gguf.parse(DATA)
TILES, ROLES = Tiling(HEADER, len(DATA), 4096, gaps=False), known_roles(HEADER)
READ = residency.read_by_a_pass(TILES, ROLES)
EXPERTS = {each.info.name: each for each in READ if each.runs > 1 and each.info is not None}
DENSE = sum(each.nbytes for each in READ if each.runs == 1)
MIXED = sum(each.nbytes for each in EXPERTS.values())
RATES = Rates(memory=8e9, cipher=4e9, cache=2e9, disk=1e9)


def test_what_all_rows_use_is_kept_first() -> None:
    """Nothing of an expert while anything else is not, and then experts of as many layers as fit, evenly; never more
    than there is room for, and never by much less than a matrix below."""
    sizes = {each.info.name: each.nbytes for each in residency.matrices(TILES, ROLES) if each.info is not None}
    del sizes["token_embd.weight"]  # in memory anyway
    for room in range(0, DENSE + MIXED + 1, (DENSE + MIXED) // 60):
        chosen = residency.choose(TILES, room, ROLES) - {"token_embd.weight"}
        taken = sum(sizes[name] for name in chosen)
        assert min(room, sum(sizes.values())) - max(sizes.values()) < taken <= room
        assert not (chosen & EXPERTS.keys()) or chosen >= sizes.keys() - EXPERTS.keys()
    half = residency.choose(TILES, DENSE + MIXED // 2, ROLES) & EXPERTS.keys()
    assert {0, 1, 2, 3} == {int(name.split(".")[1]) for name in half}
    assert sizes.keys() <= residency.choose(TILES, DENSE + MIXED, ROLES)


def test_records_of_experts_are_worth_as_much_where_all_are_read() -> None:
    """Hidden, they are kept beside the others; where only chosen ones are read, after them."""
    room = sum(each.records_nbytes for each in READ if each.runs == 1)
    others = {each.info.name for each in READ if each.info is not None} - EXPERTS.keys()
    assert others == residency.choose_kept(TILES, room, roles=ROLES, hidden=False)
    assert residency.choose_kept(TILES, room, roles=ROLES) & EXPERTS.keys()


def _speed(folder: Path, share: Share, lines: str = "") -> Speed:
    path = folder / "m.gguf"
    path.write_bytes(DATA)
    policy = load(server.write_policy(folder, {"tiny": path}, model=lines, schema=2)).policy
    division = replace(budget.divide(policy, Catalogue({"tiny": path}), 1 << 40), shares={"tiny": share})
    [found] = speeds(policy, Catalogue({"tiny": path}), division, RATES)
    return found


@pytest.mark.parametrize(("share", "lines", "resident", "opened", "kept", "read"), [
    (Share(1, 32), "", DENSE + MIXED / 4, 0, 0, 0),
    (Share(1, 32, 0), "", 0, DENSE + MIXED / 4, 0, DENSE + MIXED),
    (Share(1, 32, 0), 'access_pattern = "leaks"', 0, DENSE + MIXED / 4, 0, DENSE + MIXED / 4),
    (Share(1, 32, DENSE), "", DENSE, MIXED / 4, 0, MIXED),
    (Share(1, 32, DENSE + MIXED // 2), "", DENSE + MIXED / 8, MIXED / 8, 0, MIXED / 2),
    (Share(1, 32, 0, 1 << 40), "", 0, DENSE + MIXED / 4, DENSE + MIXED / 4, 0),
    (Share(1, 32, 0, DENSE), 'access_pattern = "leaks"', 0, DENSE + MIXED / 4, DENSE, MIXED / 4)])
def test_what_a_token_reads(share: Share, lines: str, resident: float, opened: float, kept: float, read: float,
                            tmp_path: Path) -> None:
    """By hand: of 12 experts, a token uses 3; those on a disk that may not see which are all read."""
    found = _speed(tmp_path, share, lines)
    assert pytest.approx((resident, opened, kept, read), abs=2) == (
        found.resident_nbytes, found.streamed_nbytes, found.kept_nbytes, found.read_nbytes)
    seconds = resident / 8e9 + kept * (2 / 8e9 + 1 / 4e9) + (opened - kept) * (1 / 8e9 + 1 / 4e9) + read / 2e9
    assert pytest.approx(1 / seconds, rel=1e-3) == found.tokens_per_second


def test_a_model_of_which_there_is_only_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-30B-A3B by its published numbers: a token reads 3.3 of its 30.5 billion weights."""
    name, tensors = "qwen3moe", {
        "token_embd.weight": ["Q4_K", [151936, 2048]], "output.weight": ["Q6_K", [151936, 2048]],
        "output_norm.weight": ["F32", [2048]]}
    for block in range(48):
        for part, kind, shape in (
                ("attn_norm", "F32", [2048]), ("ffn_norm", "F32", [2048]), ("attn_q_norm", "F32", [128]),
                ("attn_k_norm", "F32", [128]), ("attn_q", "Q4_K", [4096, 2048]), ("attn_k", "Q4_K", [512, 2048]),
                ("attn_v", "Q4_K", [512, 2048]), ("attn_output", "Q4_K", [2048, 4096]),
                ("ffn_gate_inp", "F32", [128, 2048]), ("ffn_gate_exps", "Q4_K", [128, 768, 2048]),
                ("ffn_up_exps", "Q4_K", [128, 768, 2048]), ("ffn_down_exps", "Q4_K", [128, 2048, 768])):
            tensors[f"blk.{block}.{part}.weight"] = [kind, shape]
    keys = {"block_count": 48, "context_length": 40960, "embedding_length": 2048, "feed_forward_length": 6144,
            "attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128,
            "attention.value_length": 128, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
            "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768, "vocab_size": 151936}
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps({"metadata": {"general.architecture": name} | {
        f"{name}.{key}": value for key, value in keys.items()}, "tensors": tensors}))
    (tmp_path / "m.gguf").write_bytes(b"not at hand")
    policy = str(server.write_policy(tmp_path, {"tiny": tmp_path / "m.gguf"}))
    assert 0 == main(["plan-memory", policy, "--shape", f"tiny={shape}", "--memory", "32768", "--json"])
    [speed] = json.loads(capsys.readouterr().out)["speeds"]
    active = 48 * (2 * 2048 * 4096 + 2 * 512 * 2048 + 8 * 3 * 768 * 2048) * 144 / 256 + 48 * 128 * 2048 * 4 + (
        151936 * 2048 * 210 / 256)
    assert pytest.approx(active, rel=0.001) == speed["resident_nbytes"]
    assert speed["memory_nbytes"] > 17e9
    assert 0 == main(["plan-memory", policy, "--shape", f"tiny={shape}", "--memory", "12288"])
    assert "for which it reads" in capsys.readouterr().out
