"""The certificates that the broker shows, judged at its start as the appliances will judge them.

An appliance that does not trust the broker hangs up without a word. So what it would refuse is
found before anybody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from appliance.errors import ModelKeyError
from appliance.keys import policy_keys
from appliance.keys.release.https import Destination, check_chain
from examples.broker.rules import ConfigError, Rule


def read(path: Path) -> list[x509.Certificate]:
    """The chain, leaf first. ConfigError for a file that has none."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate: {path}: {_reason(error)}",
                          hint="PEM: the server's certificate, then intermediates, then the root") from None


def read_key(path: Path, chain: list[x509.Certificate]) -> PrivateKeyTypes:
    """The leaf's private key. ConfigError for a file that has another, or none."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"private_key: {path}: {_reason(error)}", hint="PEM, without a passphrase") from None
    if key.public_key() != chain[0].public_key():
        raise ConfigError(f"private_key: {path}: it is not the key of the first certificate",
                          hint="the server's certificate comes first in its file, and this is its key")
    return key


def check(path: Path, chain: Iterable[x509.Certificate], rules: Iterable[Rule], at: datetime) -> None:
    """ConfigError unless the policy of each rule trusts the chain, leaf first: it ends in the
    pinned root, is for the name in the policy's URL, and verifies now."""
    shown = [each.public_bytes(Encoding.DER) for each in chain]
    for rule in rules:
        for key in policy_keys.keys_of(rule.policy.policy).values():
            if key.broker is None or key.broker.resource != rule.resource:
                continue
            try:
                check_chain(shown, Destination.of(key.broker.url, key.broker.root_sha256), at)
            except ModelKeyError as error:
                raise ConfigError(f"certificate: {path}: an appliance under {rule.policy.path} would hang up: "
                                  f"{error.summary}", hint=error.hint) from None


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "it cannot be read as such"
