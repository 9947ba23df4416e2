"""Salted digests of requests and answers, by which a record is found again by whoever has both.

Each salt comes of a random key of this boot and the request's id. So equal texts have no value in
common, be they of two tenants or of one. A receipt's opening tells its client the salts of its own
request; nobody else can test a guess.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from appliance.secure.wipe import wipe


class Salts:
    """The key of one boot."""

    def __init__(self) -> None:
        self._key = bytearray(secrets.token_bytes(32))

    def of(self, request_id: str) -> Digests:
        """The digests of one request, with nothing in them yet."""
        return Digests(self, request_id)

    def salt(self, purpose: str, request_id: str) -> bytes:
        """32 bytes for one purpose of one request."""
        return hmac.digest(self._key, f"{purpose}\n{request_id}".encode(), "sha256")

    def wipe(self) -> None:
        """Overwrite the key: no salt can be told any more."""
        wipe(self._key)


class Digests:
    """SHA-256 over salt and bytes: of a request's body, of what left as its answer, of tokens."""

    def __init__(self, salts: Salts, request_id: str) -> None:
        self.salts = {name: salts.salt(name, request_id) for name in ("request", "answer", "tokens", "settings")}
        self.request: bytes | None = None
        self._answer = hashlib.sha256(self.salts["answer"])
        self._answered = False
        self.spaces = 0  # that the answer so far ends with; they pad it, and are not counted

    def read(self, body: bytes) -> None:
        """The request's body, as it came."""
        self.request = hashlib.sha256(self.salts["request"] + body).digest()

    def sent(self, data: bytes) -> None:
        """The next bytes of the answer, as they leave."""
        text = data.rstrip(b" ")
        if text:
            self._answer.update(b" " * self.spaces + text)
            self._answered, self.spaces = True, 0
        self.spaces += len(data) - len(text)

    @property
    def answer(self) -> bytes | None:
        """The digest of the answer so far; None where nothing of it left."""
        return self._answer.digest() if self._answered else None

    @property
    def both(self) -> tuple[bytes, bytes]:
        """The digests of request and answer: of nothing, where nothing was read or left."""
        request = hashlib.sha256(self.salts["request"]).digest() if self.request is None else self.request
        return request, self._answer.digest()

    def tokens(self, prompt: Iterable[int], answer: Iterable[int]) -> bytes:
        """The digest of prompt and answer as tokens."""
        return hashlib.sha256(self.salts["tokens"] + token_bytes(prompt, answer)).digest()


def token_bytes(prompt: Iterable[int], answer: Iterable[int]) -> bytes:
    """Tokens as they are digested: the number of the prompt's, these, then the answer's, each in 4
    bytes, little-endian."""
    given = tuple(prompt)
    return b"".join(number.to_bytes(4, "little") for number in (len(given), *given, *answer))
