"""Texts that a grammar allows, drawn by llguidance over a vocabulary of bytes and control tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

BYTES = 256
_LIKELY = b"\nabc 1,}]\">'/"  # drawn more often than others, so that texts come to an end
# Marks that end a string, which chance alone would not find.
_ENDS = [mark.encode() for mark in ("\n</parameter>\n", "</parameter>\n", "</｜DSML｜parameter>\n", "</arg_value>\n",
                                    "</arg_value>", "</param>", '<|"|>', "<escape>", "<|end|>")]


class Vocabulary:
    """All bytes, then control tokens, then the end of a text; in the shape that llguidance takes."""

    def __init__(self, control: Sequence[str]) -> None:
        self.tokens = [bytes([byte]) for byte in range(BYTES)] + [text.encode() for text in control] + [b"<end>"]
        self.special_token_ids = list(range(BYTES, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.ids = {text: BYTES + place for place, text in enumerate(control)}

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())

    def matcher(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of a text."""
        found = LLMatcher(LLTokenizer(TokenizerWrapper(self)), grammar_from("lark", grammar))
        assert not found.get_error(), f"{found.get_error()}\n{grammar}"
        return found

    def drawn(self, grammar: str, rng: random.Random, most: int = 2000) -> str | None:
        """A text that the grammar allows, by chance; None if it would be longer than `most`."""
        matcher, text = self.matcher(grammar), bytearray()
        for _ in range(most):
            if matcher.is_stopped():
                break
            allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
            assert allowed, (bytes(text), matcher.get_error())
            if self.eos_token_id in allowed and (len(allowed) == 1 or rng.random() < 0.5):
                break
            end = [mark for mark in _ENDS if matcher.validate_tokens(list(mark)) == len(mark)]
            if end and rng.random() < 0.2:
                assert matcher.consume_tokens(list(end[0]))
                text += end[0]
                continue
            token = rng.choice(self._preferred(allowed, rng))
            if token == self.eos_token_id:
                break
            assert matcher.consume_token(token), (bytes(text), matcher.get_error())
            text += self.tokens[token]
        else:
            return None
        return text.decode("utf-8", "replace")

    def _preferred(self, allowed: Sequence[int], rng: random.Random) -> Sequence[int]:
        control = [token for token in allowed if BYTES <= token != self.eos_token_id]
        likely = control or [token for token in allowed if token < BYTES and token in _LIKELY]
        printable = [token for token in allowed if token >= BYTES or 32 <= token < 127]
        return (likely if rng.random() < 0.9 else printable) or printable or allowed

    def allows(self, grammar: str, text: str) -> bool:
        """Whether the grammar allows a text, in which the texts of control tokens are these."""
        matcher, at = self.matcher(grammar), 0
        while at < len(text):
            found = next((mark for mark in self.ids if text.startswith(mark, at)), None)
            tokens = [self.ids[found]] if found else list(text[at].encode())
            at += len(found) if found else 1
            if not all(matcher.consume_token(token) for token in tokens):
                return False
        return bool(matcher.is_accepting())
