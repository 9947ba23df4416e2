"""Self-test of cryptography and random source: right answers pass, every wrong one is told."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from appliance.boot.selftest import crypto as crypto_answers
from appliance.boot.selftest import crypto_vectors as vectors
from appliance.boot.selftest import entropy
from appliance.boot.selftest.run import cpu_random_result, crypto_results, random_results


def test_all_known_answers_hold() -> None:
    """The cryptography of this machine gives every published answer, for every algorithm that is relied on."""
    results = list(crypto_results(crypto_answers.answers()))
    assert [] == [result.name for result in results if not result.passed]
    assert {"aes-256-gcm", "sha256", "sha384", "sha512", "hkdf-sha-256", "ed25519", "p-256", "aes-256-kw"} == {
        result.name.split("/")[0] for result in results}
    assert len(results) == len({result.name for result in results})


def _fields(vector: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(vector) if isinstance(getattr(vector, field.name), bytes)]


TABLES = [("GCM", index, field) for index, vector in enumerate(vectors.GCM) for field in _fields(vector)] + [
    ("SHA", index, field) for index, vector in enumerate(vectors.SHA) for field in _fields(vector)] + [
    ("HKDF", index, field) for index, vector in enumerate(vectors.HKDF) for field in _fields(vector)] + [
    ("ED25519", index, field) for index, vector in enumerate(vectors.ED25519) for field in _fields(vector)] + [
    ("AGREEMENT", index, field) for index, vector in enumerate(vectors.AGREEMENT) for field in _fields(vector)] + [
    ("WRAP", index, field) for index, vector in enumerate(vectors.WRAP) for field in _fields(vector)]


@pytest.mark.parametrize(("table", "index", "field"), TABLES)
def test_one_flipped_bit_in_a_vector_fails(
        table: str, index: int, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flipping a bit of any value of any vector makes the self-test fail or the library refuse."""
    entries = list(getattr(vectors, table))
    value = getattr(entries[index], field)
    if not value:
        pytest.skip("an empty value has no bit to flip")
    entries[index] = dataclasses.replace(entries[index], **{field: bytes([value[0] ^ 1]) + value[1:]})
    monkeypatch.setattr(vectors, table, tuple(entries))
    try:
        results = list(crypto_results(crypto_answers.answers()))
    except Exception:  # noqa: BLE001 - a tag or point that does not verify may raise in the library
        return
    assert any(not result.passed for result in results)


def test_the_random_source_of_this_machine_is_healthy() -> None:
    """Real draws pass, and the CPU's random instructions are reported."""
    assert [True] == [result.passed for result in random_results()]
    assert entropy.cpu_source() in {"rdrand+rdseed", "rdrand", "rdseed", "rng", "none"}


@pytest.mark.parametrize(("source", "passed"), [("rdrand", True), ("rng", True), ("none", False)])
def test_a_tee_needs_a_random_instruction(source: str, passed: bool) -> None:
    """Outside of the simulated platform a CPU without one fails the self-test."""
    assert passed is cpu_random_result(source).passed


@pytest.mark.parametrize(("draws", "problem"), [
    ([bytes(4096), bytes(4096)], "two draws are equal; repetition count; adaptive proportion"),
    ([bytes(range(256)) * 16, bytes(range(255, -1, -1)) * 16], "healthy"),
    ([b"\x07" * 7 + bytes(range(8, 256)) * 16, os.urandom(4096)], "repetition count"),
    ([bytes(1 if i % 19 == 0 else 2 + i % 199 for i in range(4096)), os.urandom(4096)], "adaptive proportion"),
])
def test_a_broken_random_source_is_noticed(draws: list[bytes], problem: str) -> None:
    """A source that is stuck, lopsided or repeats itself fails by the name of the test that saw it."""
    remaining = iter(draws)
    (result,) = random_results(lambda: next(remaining))
    found = result.found.split("; ")
    assert set(problem.split("; ")) == set(found)


def test_health_tests_at_their_cut_off() -> None:
    """One less than the cut-off passes, the cut-off itself fails (SP 800-90B, 4.4.1 and 4.4.2)."""
    others = bytes(1 + i % 255 for i in range(512))
    assert entropy.repetition(b"\x00" * (entropy.REPETITION_CUTOFF - 1) + others)
    assert not entropy.repetition(b"\x00" * entropy.REPETITION_CUTOFF + others)
    window = [b"\x00" * count + others[:512 - count]
              for count in (entropy.PROPORTION_CUTOFF - 1, entropy.PROPORTION_CUTOFF)]
    assert [True, False] == [entropy.proportion(sample) for sample in window]


@pytest.mark.parametrize(("text", "expected"), [
    ("processor\t: 0\nflags\t\t: fpu rdrand sse rdseed\n", "rdrand+rdseed"),
    ("flags : fpu rdrandx\n", "none"),
    ("Features\t: fp asimd rng\n", "rng"),
    ("", "none"),
])
def test_cpu_source_reads_the_flags(text: str, expected: str, tmp_path: Path) -> None:
    """The CPU's own words decide, word by word; a machine that does not say has none."""
    (tmp_path / "cpuinfo").write_text(text)
    assert expected == entropy.cpu_source(tmp_path / "cpuinfo")
    assert "none" == entropy.cpu_source(tmp_path / "missing")
