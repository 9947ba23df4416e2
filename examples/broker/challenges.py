"""Challenges that the broker does not keep: what it must know of each again is in the session's
cookie, under a MAC whose key ends with the process.

Asking for challenges costs no memory, so nobody can fill it. That each is taken once is a bit in a
ring, by the challenge's number. The ring has a bit for each of the last `RING` challenges: more
than the TLS handshakes of a machine in a minute.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import struct
import threading
import time
from dataclasses import dataclass

from appliance.attestation.case.terms import ChallengeOutcome
from appliance.attestation.tpm.judging.protection import Challenge

SECONDS = 60  # from a challenge to the attestation that takes it
RING = 1 << 23  # challenges: 1 MiB of bits
_FIELDS = struct.Struct(">QQ16s32s32s")  # number, end in milliseconds, platform, nonce, tag of the right answer
_NONE = bytes(32)


@dataclass(frozen=True)
class Taken:
    """A challenge that was made here and that nobody took before. `answer`: a tag over the right
    answer of a TPM and what it shows; None where no TPM was asked."""

    platform: str
    nonce: bytes
    answer: bytes | None


class Challenges:
    """Makes challenges, and takes each once. Safe to call from several threads."""

    def __init__(self) -> None:
        self._key, self._lock = secrets.token_bytes(32), threading.Lock()
        self._made, self._used = 0, bytearray(RING // 8)

    def make(self, platform: str, asked: tuple[Challenge, ChallengeOutcome] | None) -> tuple[str, bytes]:
        """Return a cookie, and the nonce."""
        nonce = secrets.token_bytes(32)
        tag = _NONE if asked is None else self.tag(nonce, asked[0].expected, asked[1])
        with self._lock:
            number, self._made = self._made, self._made + 1
            self._used[number % RING // 8] &= ~(1 << number % 8)
        ends = int(1000 * (time.monotonic() + SECONDS))
        fields = _FIELDS.pack(number, ends, platform.encode(), nonce, tag)
        return base64.urlsafe_b64encode(fields + self._mac(b"challenge", fields)).decode().rstrip("="), nonce

    def take(self, cookie: str) -> Taken | None:
        """Return the challenge of a cookie. None for a cookie that was not made here, is too old,
        or was taken before."""
        try:
            raw = base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        fields, mac = raw[:_FIELDS.size], raw[_FIELDS.size:]
        if not hmac.compare_digest(mac, self._mac(b"challenge", fields)):
            return None
        number, ends, platform, nonce, tag = _FIELDS.unpack(fields)
        place, bit = number % RING // 8, 1 << number % 8
        with self._lock:
            late = 1000 * time.monotonic() > ends or self._made - number > RING
            if late or self._used[place] & bit:
                return None
            self._used[place] |= bit
        return Taken(platform.rstrip(b"\0").decode(), nonce, None if tag == _NONE else tag)

    def tag(self, nonce: bytes, answer: bytes, shown: ChallengeOutcome) -> bytes:
        """Return a tag that stands for a TPM's answer to a challenge, and for what the answer
        shows."""
        return self._mac(b"tpm", nonce, answer, shown.name, shown.certificate)

    def _mac(self, *parts: bytes) -> bytes:
        return hmac.digest(self._key, b"".join(struct.pack(">I", len(part)) + part for part in parts), "sha256")
