"""A tokenizer of bytes, in the form of transformers: `PYTHON byte_tokenizer.py FOLDER`.

PYTHON is that of an environment with `transformers`. It imports nothing of this project.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Write it into the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    alphabet = {character: place for place, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
