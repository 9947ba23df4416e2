"""Evidence for nonces, many to a report: nonces that arrive while a report is being made share the next one.

Firmware makes reports one at a time and not often. So at most one is under way, and all who ask meanwhile wait
for the one after it, in one Merkle tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from appliance.attestation.attestor import Attestor
from appliance.attestation.binding import parse_nonce
from appliance.attestation.evidence import Evidence
from appliance.errors import MalformedEvidenceError
from appliance.service.problems import RequestError

MAX_WAITING = 1024


class Evidences:
    """Collects nonces and hands out evidence."""

    def __init__(self, attestor: Attestor) -> None:
        self._attestor = attestor
        self._waiting: list[tuple[bytes, asyncio.Future[Evidence]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def for_nonce(self, texts: Sequence[str]) -> Evidence:
        """Evidence that answers the one nonce given as text; RequestError when it is missing, malformed or not one."""
        if not texts:
            raise RequestError("missing_required_parameter", "nonce: 16 to 64 random bytes as hex or base64url",
                               param="nonce")
        try:
            (text,) = texts
            nonce = parse_nonce(text)
        except (ValueError, MalformedEvidenceError):
            raise RequestError("invalid_value", "nonce: expected 16 to 64 bytes as hex or base64url without padding",
                               param="nonce") from None
        if len(self._waiting) >= MAX_WAITING:
            raise RequestError("overloaded", retry_after=1)
        future: asyncio.Future[Evidence] = asyncio.get_running_loop().create_future()
        self._waiting.append((nonce, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        """Make reports until nobody waits."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                made = await asyncio.to_thread(self._attestor.attest_all, [nonce for nonce, _ in batch])
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), evidence in zip(batch, made, strict=True):
                if not future.done():
                    future.set_result(evidence)
