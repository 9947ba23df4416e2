"""The seed of each answer to one prompt, from the seed of their request.

    seed(0) = the request's seed
    seed(i) = the first 53 bits of SHA-256(domain, seed, i), the numbers as 8 bytes, little-endian

So the first answer is that of a request for a single answer, and a request can ask for any other by
its seed: a number of 53 bits is an integer in every language.
"""

from __future__ import annotations

import hashlib

_DOMAIN = b"appliance choice seed v1\0"


def seed_of(seed: int, choice: int) -> int:
    """The seed of an answer, by its number among those to its prompt."""
    if not choice:
        return seed
    digest = hashlib.sha256(_DOMAIN + seed.to_bytes(8, "little") + choice.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "big") >> 11
