"""Witnesses of the audit log: what each is asked, and its answer, which the operator relays.

The appliance has no way out of its network. So it hands out the request that C2SP's tlog-witness
has, and takes the cosignature back: a relay can lose either, and forge neither.

A cosignature's time must be near the host's clock, and near the timestamp authority's where that
was heard: a witness that is wrong writes nothing into the log.
"""

from __future__ import annotations

import base64
from typing import Any

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.errors import NoteError
from appliance.policy.schema import Witness
from appliance.service.attesting.timestamps import Timestamps
from appliance.transparency import note
from appliance.transparency.note import COSIGNS, Note, NoteKey

MAX_ANSWER_BYTES = 4096
FAR_SECONDS = 86_400  # by which a cosignature's time may be off: relays are late, and clocks are wrong


class Witnesses:
    """The policy's witnesses of one log."""

    def __init__(self, audit: AuditLog, witnesses: tuple[Witness, ...], timestamps: Timestamps) -> None:
        self._audit, self._timestamps = audit, timestamps
        self._witnesses = {each.name: each for each in witnesses}

    @property
    def _chain(self) -> Chain:
        if self._audit.chain is None:
            raise RequestError("not_found")
        return self._audit.chain

    def checkpoint(self) -> bytes:
        """The newest checkpoint that is a record, as a signed note. RequestError where there is
        none yet."""
        newest = self._chain.newest
        if newest is None:
            raise RequestError("not_found", "no checkpoint was made yet in this boot")
        return newest.note.encode()

    def requests(self) -> dict[str, Any]:
        """For each witness: where it listens, and the body of its next `add-checkpoint` request,
        null where there is nothing to cosign."""
        newest = self._chain.newest
        found = []
        for name, witness in self._witnesses.items():
            old, proof = (0, ()) if newest is None else newest.grown.get(name, (0, ()))
            done = newest is None or self._chain.cosigned.get(name, 0) >= newest.checkpoint.size
            body = None if done or newest is None else "".join([
                f"old {old}\n", *(base64.b64encode(each).decode() + "\n" for each in proof), "\n",
                newest.note.encode().decode()])
            found.append({"name": name, "url": witness.url, "request": body})
        return {"witnesses": found}

    def take(self, name: str, data: bytes) -> int:
        """Record a witness's cosignature; the size of what it cosigned. RequestError for another's,
        for one of a checkpoint that is not among the newest, and for a time that is far off."""
        witness = self._witnesses.get(name)
        if witness is None:
            raise RequestError("not_found")
        key = NoteKey(name, bytes.fromhex(witness.public_key.removeprefix("ed25519:")), COSIGNS)
        try:
            lines = note.parse_lines(data.decode()) if len(data) <= MAX_ANSWER_BYTES else ()
        except (NoteError, UnicodeDecodeError):
            lines = ()
        for head in self._chain.recent:
            try:
                found = Note(head.checkpoint.text, lines)
                when, line = key.check(found), found.of(key)
            except NoteError:
                continue
            size = head.checkpoint.size
            self._require_near(when or 0)
            if line is not None and self._chain.cosigned.get(name, 0) < size:
                self._audit.write("audit.cosigned", witness=name, size=size, cosigned_at=when,
                                  signature=line.data[8:].hex())
            return size
        raise RequestError("invalid_value", "not a cosignature by this witness of one of the newest checkpoints")

    def _require_near(self, when: int) -> None:
        """RequestError for a time that is far from one that is known here."""
        known = {"the host's clock": hostclock.seconds(), "the timestamp authority": self._timestamps.now()}
        for whose, now in known.items():
            if now is not None and abs(when - now) > FAR_SECONDS:
                raise RequestError(
                    "invalid_value", f"the cosignature's time is {when}, and by {whose} it is {now:.0f}; at most "
                    f"{FAR_SECONDS} seconds between them are taken: set the clock that is wrong")
