"""The timestamp authority of the audit log: what it is asked, and its answer, which the operator
relays.

As with witnesses a relay can lose either, and forge neither: the token is verified here against the
certificate that the policy pins.
"""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.audit.log import AuditLog
from appliance.errors import NoteError
from appliance.policy.schema import TimestampAuthority
from appliance.signed import timestamps
from appliance.transparency.checkpoint import Checkpoint

MAX_ANSWER_BYTES = 40 << 10


def digest(checkpoint: Checkpoint) -> bytes:
    """The digest that a token of a checkpoint is for: SHA-256 of the note's text."""
    return hashlib.sha256(checkpoint.text.encode()).digest()


class Timestamps:
    """The policy's authority, and the log that it dates."""

    def __init__(self, audit: AuditLog, authority: TimestampAuthority | None) -> None:
        self._audit, self._authority = audit, authority
        self._heard: tuple[float, float] | None = None  # the newest token's time, and the monotonic clock then

    def now(self) -> float | None:
        """The time by the authority: its newest token's, and what has passed since it was taken.
        None before the first token of this boot."""
        return None if self._heard is None else self._heard[0] + time.monotonic() - self._heard[1]

    def latest(self) -> float:
        """The time by the host's clock, or by the authority where that is later: so a host cannot
        turn the clock back behind a token."""
        return max(hostclock.seconds(), self.now() or 0.0)

    def request(self) -> dict[str, Any]:
        """Where the authority listens, and the next request to it in base64, null where there is
        nothing to date. RequestError where the policy has no authority."""
        if self._authority is None or self._audit.chain is None:
            raise RequestError("not_found")
        newest = self._audit.chain.newest
        done = newest is None or self._audit.chain.stamped >= newest.checkpoint.size
        body = None if newest is None or done else base64.b64encode(
            timestamps.request(digest(newest.checkpoint))).decode()
        return {"url": self._authority.url, "request": body}

    def take(self, data: bytes) -> dict[str, Any]:
        """Record the token in a response; the size that it dates, and the time. RequestError for
        anything but a token by the authority for one of the newest checkpoints."""
        if self._authority is None or self._audit.chain is None:
            raise RequestError("not_found")
        reason = "no checkpoint was made yet in this boot"
        try:
            token = timestamps.token_of(data)
        except NoteError as error:
            raise RequestError("invalid_value", error.summary) from None
        for head in self._audit.chain.recent:
            try:
                found = timestamps.verify(token, digest(head.checkpoint), self._authority.root_sha256)
            except NoteError as error:
                reason = error.summary
                continue
            size = head.checkpoint.size
            if self._audit.chain.stamped < size:
                self._audit.write("audit.timestamped", size=size, token=found.token.hex())
                self._heard = found.time.timestamp(), time.monotonic()
            return {"size": size, "time": f"{found.time:%Y-%m-%dT%H:%M:%SZ}"}
        raise RequestError("invalid_value", f"not a token for one of the newest checkpoints: {reason}")
