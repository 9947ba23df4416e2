"""The oblivious form of a model's tokenizer: both ways."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import UnsupportedError
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.answers import Writer
from appliance.oblivious.encoder import Encoder
from appliance.oblivious.rows import PieceRows
from appliance.text.jinja.standins import Fill
from appliance.text.tokenizer.partition import Span, SpecialText
from appliance.text.tokenizer.tokenizer import Tokenizer


class Sweeps:
    """The two ways of a tokenizer that touch the same pages for all texts of a length."""

    def __init__(self, tokenizer: Tokenizer, kernels: KernelTable) -> None:
        """UnsupportedError for a tokenizer that is not covered."""
        if tokenizer.merges is None:
            raise UnsupportedError("the model's tokenizer has no oblivious form yet; covered: BPE",
                                   hint='use another model, or privacy.memory_access = "open"')
        short = [each.text for each in tokenizer.specials if len(each.text.encode("utf-8", "surrogateescape")) < 2]
        if tokenizer.merges.leads and short:
            raise UnsupportedError(f"the special token {short[0]!r} has one byte, which leaves no place for the space "
                                   "after it", hint='use another model, or privacy.memory_access = "open"')
        self.encoder, self.rows = Encoder(tokenizer.merges, kernels), PieceRows(tokenizer, kernels)
        self.writer = Writer(self.rows, kernels)

    def encode(self, text: str, specials: Sequence[SpecialText], untrusted: Sequence[Span], *,
               inside: bool = False, fills: Sequence[Fill] = ()) -> list[int]:
        """Token ids of a text, in which special tokens are found but where a guarded one touches a
        span. `inside`: as of `Tokenizer.encode`. `fills`: bytes to put into the text."""
        return self.encoder.encode(text, specials, untrusted, inside=inside, fills=fills)

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self.rows.piece(token)

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token."""
        return self.rows.is_special(token)
