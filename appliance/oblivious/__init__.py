"""Text to tokens and back on the same pages of memory, in the same order, for all texts of one
class of length.

    marked     tokenizers of characters, and marks for spaces, by bytes
    cuts       the pre-tokenizers that can be cut so, and the classes of characters
    pages      tables in whole pages
    pairs      merges as a table that is swept page by page
    wholes     words that are tokens without merges
    encoder    text to tokens
    contents   a request's texts, from its JSON to the encoder
    rows       tokens to their bytes
    stops      stop strings
    answers    tokens to the JSON of an answer's events
    sweeps     both, in the place of what a tokenizer does else

Tokens equal those of `text.tokenizer`. docs/concepts/memory-access.md lists the parts that still
tell of a text.
"""

from appliance.oblivious.answers import AnswerTexts, may_stand
from appliance.oblivious.encoder import class_of
from appliance.oblivious.stops import SweptStops
from appliance.oblivious.sweeps import Sweeps

__all__ = ["AnswerTexts", "Sweeps", "SweptStops", "class_of", "contents", "may_stand"]
