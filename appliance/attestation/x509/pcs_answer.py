"""One raw answer of Intel's Provisioning Certification Service (PCS): JSON and its signature."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_NAME = re.compile(rb'\s*\{\s*"(tcbInfo|enclaveIdentity)"\s*:\s*')
TCB, IDENTITY = "tcbInfo", "enclaveIdentity"
_WANTED_ID = {TCB: "TDX", IDENTITY: "TD_QE"}


@dataclass(frozen=True)
class PcsAnswer:
    """A raw answer: `name` says which, `text` is what the signature covers, to the byte; nothing of
    it is verified."""

    name: str
    text: str
    signature: str
    value: dict[str, Any]
    file: str

    @property
    def misfit(self) -> str:
        """Why a TDX quote has no use for it; empty where it may have."""
        found, wanted = self.value.get("id"), _WANTED_ID[self.name]
        return "" if found == wanted else f"{self.name} of {str(found)[:20]!r}, a TDX quote needs {wanted!r}"

    @property
    def issued(self) -> datetime:
        """When it was issued; the earliest time there is where it does not say."""
        try:
            return datetime.fromisoformat(str(self.value.get("issueDate")).replace("Z", "+00:00"))
        except ValueError:
            return datetime.min


def answer(data: bytes, file: str) -> PcsAnswer | None:
    """The raw answer in JSON text; None if it is not one."""
    found = _NAME.match(data)
    if found is None:
        return None
    try:
        text, name = data.decode(), found[1].decode()
        value, end = json.JSONDecoder().raw_decode(text, len(data[:found.end()].decode()))
        whole = json.loads(text)
        signature = whole["signature"]
        bytes.fromhex(signature)
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(value, dict) or whole[name] != value:
        return None
    return PcsAnswer(name, text[len(data[:found.end()].decode()):end], signature, value, file)
