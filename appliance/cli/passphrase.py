"""The passphrase of a key file, from whoever sits at the terminal."""

from __future__ import annotations

import getpass

from appliance.errors import PolicyError


def ask() -> bytes:
    """Ask for it, without showing it. PolicyError where nobody answers: no terminal, or the end of
    the input."""
    try:
        return getpass.getpass("passphrase of the key: ").encode(errors="surrogateescape")
    except EOFError:
        raise PolicyError("key: it is encrypted, and nobody is there to give its passphrase", code="key-passphrase",
                          hint="give it at a terminal, or as a line on standard input") from None
