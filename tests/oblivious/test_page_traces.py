"""The pages that a text's way to tokens and back touches, and their order: the same for all texts of a class."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.oblivious import Sweeps, encoder
from appliance.text.tokenizer import Tokenizer
from tests.support.extent import WHOLE
from tests.support.oblivious import both, drawn_texts, encoder_of, forms, kernels, memory_of, small_merges
from tests.support.page_traces import PAGE, PageTracer
from tests.support.step_traces import StepTracer
from tests.support.vocabularies import byte_level, sentencepiece

PAIRS = 10_000 if WHOLE else 200
VOCABULARY = 5000
_WORDS = {"\u2581": -1.0, "t": -9.0, "h": -8.0, "e": -7.0, "th": -3.0, "the": -2.0, "\u2581the": -1.5, "é": -6.0,
          "\u0432": -5.0}


def _encode_traces(swept: Tokenizer, texts: list[str], nbytes: int, folder: Path, window: int) -> set[bytes]:
    tracer, traces = PageTracer(memory_of(swept, nbytes), folder, window), set()
    for text in texts:
        assert nbytes == len(text.encode())
        with tracer.tracing():
            swept.encode(text, parse_special=True)
        traces.add(tracer.pages)
    return traces


@pytest.mark.slow
def test_texts_of_one_class_have_one_trace(tmp_path: Path) -> None:
    """400 texts: prose, code, digits, scripts, emoji, control-like."""
    swept = forms(byte_level(small_merges()))[1]
    texts = drawn_texts(2 * PAIRS, 256, 1)
    assert 1 == len(_encode_traces(swept, texts, 256, tmp_path, 24))


@pytest.mark.slow
@pytest.mark.parametrize(("nbytes", "count"), [(256, 9), (1024, 3)])
def test_a_real_vocabulary_has_one_trace(nbytes: int, count: int, tmp_path: Path) -> None:
    """So do texts by the demo model's tables, of hundreds of pages."""
    assert 1 == len(_encode_traces(both()[1], drawn_texts(count, nbytes, 2), nbytes, tmp_path, 24))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [byte_level(small_merges()), sentencepiece(_WORDS)], ids=("bytes", "marks"))
def test_texts_of_one_class_have_the_same_steps(kinds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No jump of the compiled code depends on a text: prose, scripts, white space, control-like text. Neither does a
    line of memory that it names, with AVX-512. All rounds are alike, so that fewer do. So are all bytes: outside of the
    soak, the class is the shortest that the kernel takes, where the same instructions run."""
    nbytes = encoder.LEAST if WHOLE else 64
    monkeypatch.setattr(encoder, "LEAST", nbytes)
    swept = forms(kinds)[1]
    reads, tracer, traces = encoder_of(swept), StepTracer(kernels().address("encode_text"), tmp_path), set()
    reads._fixed["ROUNDS"] = encoder.ROUNDS if WHOLE else 5
    for text in drawn_texts(20 if WHOLE else 4, nbytes - 6, 4):
        swept.encode(text, parse_special=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(reads, "_encode", tracer.traced(reads._encode))  # not Python's steps around it
            swept.encode(text, parse_special=True)
        assert 1 == reads.blocks
        traces.add(tracer.trace if "+avx512f" in kernels().target.llvm_features else tracer.steps.tobytes())
    assert 1 == len(traces)


def test_tokens_of_one_vocabulary_have_one_trace(tmp_path: Path) -> None:
    """Tokens to their bytes: the whole table, whichever token. The plain form's texts lie where Python put them."""
    swept = both()[1]
    assert isinstance(swept.sweeping, Sweeps)
    rows = swept.sweeping.rows
    tracer = PageTracer([(rows.table.address, rows.table.nbytes), (rows.row.address, rows.row.nbytes)], tmp_path, 4)
    traces = set()
    for token in range(0, swept.vocab_size, swept.vocab_size // 60):
        with tracer.tracing():
            swept.piece(token)
        traces.add(tracer.pages)
    assert 1 == len(traces)


def _parts(scratch: Scratch) -> list[tuple[int, int]]:
    """The pages of rows of logits."""
    memory = scratch._memory
    start, end = -(-memory.address // PAGE) * PAGE, (memory.address + memory.nbytes) // PAGE * PAGE
    sweeps = [each for each in (scratch.sweep, scratch.sweep and scratch.sweep.short) if each is not None]
    return [(start, end - start)] + [(part.address, part.nbytes) for each in sweeps
                                     for part in (*each.rows.parts, each._spare)]


def _choices(sampling: Sampling, sweeps: bool, folder: Path, count: int, window: int = 4,
             masked: bool = False) -> int:
    """Different traces of so many choices. Each has its likely tokens elsewhere, and so have the answer and a mask."""
    scratch = Scratch(VOCABULARY, kernels(), sweeps=sweeps)
    tracer, traces, rng = PageTracer(_parts(scratch), folder, window), set(), np.random.default_rng(3)
    for number in range(count):
        logits = rng.standard_normal(VOCABULARY).astype(np.float32)
        logits[(number * 997) % VOCABULARY:][:20] += 12.0
        sampler = Sampler(sampling, rng.integers(VOCABULARY, size=9).tolist(), VOCABULARY, scratch)
        for token in rng.integers(VOCABULARY, size=5).tolist():
            sampler.accept(token)
        mask = np.packbits(rng.random(VOCABULARY) < 0.5, bitorder="little").tobytes() if masked else None
        with tracer.tracing():
            sampler.choose(logits, mask)
        traces.add(tracer.pages)
    return len(traces)


@pytest.mark.parametrize("sampling", [
    Sampling(seed=5), Sampling(seed=5, temperature=0.7), Sampling(seed=5, top_k=40),
    Sampling(seed=5, top_k=511, temperature=1.3)])
def test_choices_have_one_trace(sampling: Sampling, tmp_path: Path) -> None:
    """Whatever token is likely and drawn."""
    assert 1 == _choices(sampling, True, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [
    Sampling(seed=5, top_p=0.9), Sampling(seed=5, min_p=0.02), Sampling(seed=5, typical_p=0.8),
    Sampling(seed=5, tfs_z=0.9), Sampling(seed=5, top_n_sigma=2.0), Sampling(seed=5, top_k=600),
    Sampling(seed=5, epsilon_cutoff=2.0, eta_cutoff=3.0), Sampling(seed=5, xtc_probability=1.0, xtc_threshold=0.02),
    Sampling(seed=5, mirostat=1), Sampling(seed=5, mirostat=2), Sampling(temperature=0.0),
    Sampling(seed=5, logit_bias={7: 1.0}, repeat_penalty=1.2, frequency_penalty=0.5, dry_multiplier=1.0,
             dry_penalty_last_n=1024),
    Sampling(seed=5, top_logprobs=9)], ids=range(13))
def test_whole_rows_have_one_trace(sampling: Sampling, tmp_path: Path) -> None:
    """So have samplers that leave any number of tokens, under a mask that allows any."""
    assert 1 == _choices(sampling, True, tmp_path, 9, masked=True)


@pytest.mark.parametrize("sampling", [
    Sampling(seed=5, top_k=40), Sampling(seed=5, top_k=40, top_p=0.9), Sampling(seed=5, top_k=511, min_p=0.05),
    Sampling(seed=5, top_k=600, tfs_z=0.9), Sampling(seed=5, top_k=40, tfs_z=0.9),
    Sampling(seed=5, xtc_probability=1.0, xtc_threshold=0.1), Sampling(seed=5, mirostat=1),
    Sampling(seed=5, mirostat=2), Sampling(seed=5, temperature=0.7, dynatemp_range=0.9)], ids=range(9))
def test_few_candidates_have_the_trace_of_many(sampling: Sampling, tmp_path: Path) -> None:
    """Masks that leave one token, as many as `top_k`, one more; and logits from flat ones to a single peak."""
    vocabulary, k = 1100, int(sampling.top_k) or 2
    for scratch in [Scratch(vocabulary, kernels(), sweeps=True) for _ in range(7)]:  # pages end elsewhere in each
        rng, traces = np.random.default_rng(4), set()
        tracer = PageTracer(_parts(scratch), Path(tempfile.mkdtemp(dir=tmp_path)), 4)
        for left, spread in ((1, 1), (k, 1), (k + 1, 1), (1000, 1), (1000, 1e-6), (1000, 9), (1000, 500)):
            allowed = np.isin(np.arange(vocabulary), rng.choice(vocabulary, left, replace=False))
            logits = rng.standard_normal(vocabulary).astype(np.float32) * np.float32(spread)
            with tracer.tracing():
                Sampler(sampling, (), vocabulary, scratch).choose(
                    logits, np.packbits(allowed, bitorder="little").tobytes())
            traces.add(tracer.pages)
        assert 1 == len(traces)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [
    Sampling(seed=5, min_p=0.1), Sampling(seed=5, typical_p=0.8),
    Sampling(seed=5, top_k=9, top_p=0.9, repeat_penalty=1.2, logit_bias={7: 1.0})][:3 if WHOLE else 1])
def test_choices_have_the_same_steps(sampling: Sampling, tmp_path: Path) -> None:
    """No jump of the compiled code depends on logits, nor on what was chosen before."""
    size, rng, traces = 300, np.random.default_rng(6), set()
    scratch, tracer = Scratch(size, kernels(), sweeps=True), StepTracer(kernels().address("add_up"), tmp_path)
    for number, spread in enumerate((1, 1e-6, 100, 9)[:4 if WHOLE else 3]):
        logits = rng.standard_normal(size).astype(np.float32) * np.float32(spread)
        sampler = Sampler(sampling, rng.integers(size, size=9).tolist(), size, scratch)
        if number:
            with tracer.tracing():
                sampler.choose(logits)
            traces.add(tracer.steps.tobytes())
        else:
            sampler.choose(logits)
    assert 1 == len(traces)


def test_the_tracer_sees_the_plain_choice(tmp_path: Path) -> None:
    """Without sweeps, traces differ with the token that is drawn."""
    assert 5 < _choices(Sampling(seed=5), False, tmp_path, 40, 2)
