"""A wrapping key in Vault's transit engine, or in a server with its API. The key never leaves it.

    POST /v1/MOUNT/decrypt/KEY    {"ciphertext": "vault:v1:…", "associated_data": "…"}
    200                           {"data": {"plaintext": "…"}}

Source: HashiCorp, "Transit secrets engine (API)". Vault asks for a token and for nothing else, so
the token belongs to the broker: it may decrypt and, for `wrap`, encrypt under this one key.
"""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.codec import strict
from appliance.codec.printable import plain
from appliance.keys.document import NBYTES
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe
from examples.broker.keepers.outward import Service
from examples.broker.keepers.wrapping import private, refused


@dataclass(frozen=True)
class VaultWrapper:
    """A key of a transit engine. `ca`: the certificates that Vault's must lead to; None over plain
    HTTP, which only goes to this machine."""

    url: str
    mount: str
    name: str
    token_file: Path
    ca: Path | None
    kind: str = "vault"

    def wrap(self, key: bytearray, context: bytes) -> str:
        """Have Vault encrypt it."""
        found = self._ask("encrypt", context, "plaintext", base64.b64encode(key).decode())["ciphertext"]
        if not isinstance(found, str) or not found.startswith("vault:v"):
            raise refused(self.url, "an answer without a ciphertext")
        return found

    def unwrap(self, ciphertext: str, context: bytes) -> bytearray:
        """Have Vault decrypt it. The answer's text stays in this process's memory until Python uses
        it anew."""
        try:
            found = strict.base64(self._ask("decrypt", context, "ciphertext", ciphertext)["plaintext"])
        except (ValueError, TypeError, AttributeError):
            found = b""
        if len(found) != NBYTES:
            raise refused(self.url, f"an answer that is not {NBYTES} bytes in base64")
        return SecretBytes(found)

    def _ask(self, verb: str, context: bytes, name: str, value: str) -> dict[str, Any]:
        body = json.dumps({name: value, "associated_data": base64.b64encode(context).decode()}).encode()
        try:
            answer = Service(self.url, self.ca).ask("POST", f"/v1/{self.mount}/{verb}/{self.name}", {
                "x-vault-token": self._token(), "x-vault-request": "true", "content-type": "application/json"}, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise refused(self.url, plain(str(error), 200),
                          "is it running and unsealed, and does its certificate lead to `ca`?") from None
        return self._data(answer.status, answer.body)

    def _data(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if status == 200 and isinstance(found, dict) and isinstance(found.get("data"), dict):
            return dict(found["data"])
        said = found.get("errors") if isinstance(found, dict) else None
        raise refused(self.url, f"HTTP status {status}{'' if not said else f': {plain(str(said), 200)}'}",
                      f"403: the token in {self.token_file} may not use {self.mount}/…/{self.name}; 400: another key "
                      "wrapped it, or its version is retired; 503: Vault is sealed")

    def _token(self) -> str:
        text = private(self.token_file)
        try:
            return text.decode("ascii").strip()
        finally:
            wipe(text)
