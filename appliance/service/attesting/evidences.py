"""Evidence for nonces, many to a report: nonces that arrive while a report is being made share the
next one.

Firmware makes reports one at a time and not often. So at most one is under way, and all who ask
meanwhile wait for the one after it, in one Merkle tree; on hardware two reports never begin within
`SPACING_SECONDS`. Evidence binds the TLS key of the connection that it is asked on, so callers on
different keys (old connections during a rotation) have reports of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from appliance.api.problems import RequestError
from appliance.attestation.binding import parse_nonce
from appliance.attestation.collect.attestor import Attestor, BoundKey
from appliance.attestation.evidence import SIMULATED, Evidence
from appliance.errors import MalformedEvidenceError
from appliance.tls import Session

MAX_WAITING = 1024
SPACING_SECONDS = 0.1
SHARED_BYTES = 4096  # of a piece of evidence: of a TPM's, all but one or two are the same each time
PLAIN = BoundKey(None)
Waiting = list[tuple[bytes, bytes | None, "asyncio.Future[Evidence]"]]  # nonce, exporter of its session


class Evidences:
    """Collects nonces and hands out evidence."""

    def __init__(self, attestor: Attestor) -> None:
        self._attestor = attestor
        self._spacing = 0.0 if attestor.platform == SIMULATED else SPACING_SECONDS
        self._waiting: dict[BoundKey, Waiting] = {}
        self._begun = 0.0
        self._worker: asyncio.Task[None] | None = None
        self._last: dict[bytes, bytes] = {}

    async def for_nonce(self, texts: Sequence[str], key: BoundKey = PLAIN,
                        session: Session | None = None) -> Evidence:
        """Evidence that answers the one nonce given as text, of this TLS session or, without one,
        of its key alone. RequestError when the nonce is missing, malformed or not one."""
        if not texts:
            raise RequestError("missing_required_parameter", "nonce: 16 to 64 random bytes as hex or base64url",
                               param="nonce")
        try:
            (text,) = texts
            nonce = parse_nonce(text)
        except (ValueError, MalformedEvidenceError):
            raise RequestError("invalid_value", "nonce: expected 16 to 64 bytes as hex or base64url without padding",
                               param="nonce") from None
        if sum(map(len, self._waiting.values())) >= MAX_WAITING:
            raise RequestError("overloaded", retry_after=1)
        future: asyncio.Future[Evidence] = asyncio.get_running_loop().create_future()
        exporter = None if session is None else session.exporter(nonce)
        self._waiting.setdefault(key, []).append((nonce, exporter, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    def pieces(self, evidence: Evidence) -> list[bytes]:
        """Evidence as JSON, in pieces. Those that the last one had, too, are the same objects:
        whoever does not read the evidence that it asked for has no event log of its own here."""
        found = [text[start:start + SHARED_BYTES].encode() for text in evidence.texts()
                 for start in range(0, len(text), SHARED_BYTES)]
        shared = [self._last.get(piece, piece) for piece in found]
        self._last = dict(zip(shared, shared, strict=True))
        return shared

    async def _work(self) -> None:
        """Make reports until nobody waits, for the key first that has waited longest."""
        while self._waiting:
            await asyncio.sleep(max(0.0, self._begun + self._spacing - time.monotonic()))
            self._begun = time.monotonic()
            key = next(iter(self._waiting))
            # A caller who has left needs no leaf, and its place in the tree would only make the
            # others' proofs longer.
            batch = [each for each in self._waiting.pop(key) if not each[-1].done()]
            if batch:
                await self._answer(batch, key)

    async def _answer(self, batch: Waiting, key: BoundKey) -> None:
        """One report for all of them."""
        try:
            nonces, sessions = [each[0] for each in batch], [each[1] for each in batch]
            made = await asyncio.to_thread(self._attestor.attest_all, nonces, key, sessions)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            for *_, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (*_, future), evidence in zip(batch, made, strict=True):
            if not future.done():
                future.set_result(evidence)
