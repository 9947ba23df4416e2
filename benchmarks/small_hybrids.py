"""Small models with recurrent layers, random weights, and the demo model's tokenizer: for
measurements of requests, not of speed."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from benchmarks import families
from tests.support import family_models

NAMES = ("granitehybrid.small", "lfm2.small", "qwen35.small")
CONTEXT, TOKENS = 2048, "tokenizer.ggml.tokens"


def _header(name: str, words: int) -> dict[str, object]:
    """The header of the family's test model, with a longer context."""
    return {**family_models.MODELS[name.partition(".")[0]], "context_length": CONTEXT, "vocab_size": words}


def make(name: str, work: Path, demo: Path) -> Path:
    """Write the model of a name of NAMES, unless it is there. `demo`: a file with the tokenizer."""
    path = work / f"family-{name}.gguf"
    if path.exists():
        return path
    fields = GGUFReader(demo).fields
    words = len(fields[TOKENS].data)
    family_models.MODELS[name], family_models.VOCABULARY = _header(name, words), words
    tokenizer = [b"".join(part.tobytes() for part in field.parts) for key, field in fields.items()
                 if key.startswith("tokenizer.")]
    return families.make(name, work, tokenizer)
