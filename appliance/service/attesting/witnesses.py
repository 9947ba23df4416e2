"""Witnesses of the audit log: what each is asked, and its answer, which the operator relays.

The appliance has no way out of its network. So it hands out the request that C2SP's tlog-witness
has, and takes the cosignature back: a relay can lose either, and forge neither.
"""

from __future__ import annotations

import base64
from typing import Any

from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.errors import NoteError
from appliance.policy.schema import Witness
from appliance.service.api.problems import RequestError
from appliance.transparency import note
from appliance.transparency.note import COSIGNS, Key, Note

MAX_ANSWER_BYTES = 4096


class Witnesses:
    """The policy's witnesses of one log."""

    def __init__(self, audit: AuditLog, witnesses: tuple[Witness, ...]) -> None:
        self._audit = audit
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

    def asked(self) -> dict[str, Any]:
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

    def answered(self, name: str, data: bytes) -> int:
        """Record a witness's cosignature; the size of what it cosigned. RequestError for another's,
        and for one of a checkpoint that is not among the newest."""
        witness = self._witnesses.get(name)
        if witness is None:
            raise RequestError("not_found")
        key = Key(name, bytes.fromhex(witness.public_key.removeprefix("ed25519:")), COSIGNS)
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
            if line is not None and self._chain.cosigned.get(name, 0) < size:
                self._audit.write("audit.cosigned", witness=name, size=size, cosigned_at=when,
                                  signature=line.data[8:].hex())
            return size
        raise RequestError("invalid_value", "not a cosignature by this witness of one of the newest checkpoints")
