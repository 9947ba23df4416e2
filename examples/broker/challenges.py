"""Challenges that the broker does not keep: what it must know of each again is in the session's
cookie, under a MAC with the time.

Asking for challenges costs no memory, so nobody can fill it. That each is taken once is a bit in a
ring of its maker, by the challenge's number. A ring has a bit for each of the last `RING`
challenges: more than the TLS handshakes of a machine in a minute.

Brokers with one shared secret take each other's challenges. A broker has a ring for each maker
whose challenges it met in the last minute. No broker knows what another one took, so a challenge is
taken at most once by each of them.
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
CLOCK_SECONDS = 10  # by which the clocks of two brokers may differ
RING = 1 << 23  # challenges: 1 MiB of bits
MAX_MAKERS = 16  # rings: more brokers, or starts of brokers, within a minute are refused
_FIELDS = struct.Struct(">8sQQ16s32s32s")  # maker, number, end in ms, platform, nonce, tag of the right answer
_NONE = bytes(32)
_LABEL = b"appliance/broker-challenges/v1"


@dataclass(frozen=True)
class Taken:
    """A challenge that was made here, or by a broker of the same secret, and that nobody took here
    before. `answer`: a tag over the right answer of a TPM and what it shows; None where no TPM was
    asked."""

    platform: str
    nonce: bytes
    answer: bytes | None


class _Ring:
    """A bit for each of one maker's last challenges."""

    def __init__(self) -> None:
        self.met, self.ends = 0, 0  # the highest number and one; the last end that was taken, in milliseconds
        self._used = bytearray(RING // 8)

    def meet(self, number: int) -> None:
        """Make room for a number that is the highest so far."""
        first, self.met = max(self.met, number + 1 - RING), number + 1
        while first <= number:
            place, nbytes = first % RING // 8, (number + 1 - first) // 8
            if first % 8 or not nbytes:
                self._used[place] &= ~(1 << first % 8)
                first += 1
            else:
                nbytes = min(nbytes, len(self._used) - place)
                self._used[place:place + nbytes] = bytes(nbytes)
                first += 8 * nbytes

    def take(self, number: int, ends: int) -> bool:
        """Whether the number is recent, and is taken for the first time."""
        self.ends = max(self.ends, ends)
        place, bit = number % RING // 8, 1 << number % 8
        if self.met - number > RING or self._used[place] & bit:
            return False
        self._used[place] |= bit
        return True


class Challenges:
    """Makes challenges, and takes each once. Safe to call from several threads."""

    def __init__(self, shared: bytes | None = None) -> None:
        """`shared`: the secret of brokers that take each other's challenges. Without it a key is
        drawn, and ends with the process."""
        self._key = hmac.digest(secrets.token_bytes(32) if shared is None else shared, _LABEL, "sha256")
        self._lock, self._own = threading.Lock(), secrets.token_bytes(8)  # a start's own numbers begin at 0
        self._made, self._rings = 0, {self._own: _Ring()}

    def make(self, platform: str, asked: tuple[Challenge, ChallengeOutcome] | None) -> tuple[str, bytes]:
        """Return a cookie, and the nonce."""
        nonce = secrets.token_bytes(32)
        tag = _NONE if asked is None else self.tag(nonce, asked[0].expected, asked[1])
        ends = int(1000 * (time.time() + SECONDS))
        with self._lock:
            number, self._made = self._made, self._made + 1
            self._rings[self._own].meet(number)
        fields = _FIELDS.pack(self._own, number, ends, platform.encode(), nonce, tag)
        return base64.urlsafe_b64encode(fields + self._mac(b"challenge", fields)).decode().rstrip("="), nonce

    def take(self, cookie: str) -> Taken | None:
        """Return the challenge of a cookie. None for a cookie that no broker of this secret made,
        is too old, or was taken before."""
        try:
            raw = base64.b64decode(cookie + "=" * (-len(cookie) % 4), altchars=b"-_", validate=True)
        except ValueError:
            return None
        fields, mac = raw[:_FIELDS.size], raw[_FIELDS.size:]
        if not hmac.compare_digest(mac, self._mac(b"challenge", fields)):
            return None
        maker, number, ends, platform, nonce, tag = _FIELDS.unpack(fields)
        with self._lock:
            now = int(1000 * time.time())
            if not now <= ends <= now + 1000 * (SECONDS + CLOCK_SECONDS):
                return None
            ring = self._ring(maker, now)
            if ring is None:
                return None
            if number >= ring.met:
                ring.meet(number)
            if not ring.take(number, ends):
                return None
        return Taken(platform.rstrip(b"\0").decode(), nonce, None if tag == _NONE else tag)

    def tag(self, nonce: bytes, answer: bytes, shown: ChallengeOutcome) -> bytes:
        """Return a tag that stands for a TPM's answer to a challenge, and for what the answer
        shows."""
        return self._mac(b"tpm", nonce, answer, shown.name, shown.certificate)

    def _ring(self, maker: bytes, now: int) -> _Ring | None:
        """The ring of a maker; None where there were too many within a minute."""
        if maker not in self._rings:
            kept = {name: each for name, each in self._rings.items()
                    if name == self._own or each.ends >= now}
            if len(kept) >= MAX_MAKERS:
                return None
            self._rings = kept | {maker: _Ring()}
        return self._rings[maker]

    def _mac(self, *parts: bytes) -> bytes:
        return hmac.digest(self._key, b"".join(struct.pack(">I", len(part)) + part for part in parts), "sha256")
