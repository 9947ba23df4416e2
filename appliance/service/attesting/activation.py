"""Answers to challenges of the machine's TPM, one at a time: anyone may ask, and a TPM is slow.

A challenge is an outsider's bytes: read strictly here, then judged by the TPM. Its failures are
told as one, so that nobody learns more from them than that it did not open the challenge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from appliance.api.problems import RequestError
from appliance.attestation.collect.attestor import Attestor
from appliance.attestation.tpm import credential
from appliance.codec import strict
from appliance.errors import AttestationError, MalformedEvidenceError
from appliance.platforms import TPM

MAX_WAITING = 16
SPACING_SECONDS = 0.1
_REFUSED = ("tpm-activation", "tpm-ek-absent", "tpm-ek-other")
_WANTED = "challenge: a credential and an encrypted secret, each with its size before it, as base64url without padding"


def parse(text: str) -> bytes:
    """A challenge from base64url without padding, unused bits zero. Raises MalformedEvidenceError.
    """
    try:
        data = strict.base64url(text)
    except strict.SpellingError:
        raise MalformedEvidenceError("activation: the challenge has another spelling than its own bytes do") from None
    except ValueError:
        raise MalformedEvidenceError("activation: the challenge is not base64url") from None
    credential.parse_challenge(data)
    return data


class Activations:
    """Hands challenges to the TPM, in turns."""

    def __init__(self, attestor: Attestor) -> None:
        self._attestor = attestor
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._begun = 0.0

    async def answer(self, texts: Sequence[str]) -> bytes:
        """The answer to the one challenge given as text, 32 bytes. RequestError when it is missing,
        malformed, for another TPM, or one too many."""
        if self._attestor.platform != TPM.name:
            raise RequestError("not_found", "this machine has no TPM: there is nothing to activate")
        if not texts:
            raise RequestError("missing_required_parameter", _WANTED, param="challenge")
        try:
            (text,) = texts
            challenge = parse(text)
        except (ValueError, MalformedEvidenceError):
            raise RequestError("invalid_value", _WANTED, param="challenge") from None
        if self._waiting >= MAX_WAITING:
            raise RequestError("overloaded", retry_after=1)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(challenge)
        finally:
            self._waiting -= 1

    async def _ask(self, challenge: bytes) -> bytes:
        await asyncio.sleep(max(0.0, self._begun + SPACING_SECONDS - time.monotonic()))
        self._begun = time.monotonic()
        try:
            return await asyncio.to_thread(self._attestor.activate, challenge)
        except AttestationError as error:
            if error.code in _REFUSED:
                raise RequestError("activation_refused") from None
            raise
