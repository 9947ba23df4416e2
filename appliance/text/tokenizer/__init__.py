"""Text to token ids and back, from GGUF metadata alone.

    vocabulary     what the metadata says: tokens, kinds, special ids
    partition      special tokens within text
    pretokenizers  how each family of models cuts text into words (data)
    splitting      doing that cut
    merging        symbols to tokens, best pair first
    tokenizer      encode and decode
    stream         tokens to text, one by one

Results equal llama.cpp's, which the models' files are made for. The package knows nothing of chats:
see `engine.template`.
"""

from appliance.text.tokenizer.stream import TextStream
from appliance.text.tokenizer.tokenizer import Tokenizer, load

__all__ = ["TextStream", "Tokenizer", "load", "partition", "pretokenizers", "splitting", "stream", "tokenizer",
           "vocabulary"]
