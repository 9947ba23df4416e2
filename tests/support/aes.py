"""AES-256's key schedule and GCM's hash key, in forms in which libraries keep them: to look for them in memory.

FIPS 197 section 5.2; SP 800-38D section 6.3.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_ROUNDS = 14


def _s_box() -> bytes:
    """FIPS 197 section 5.1.1: the inverse in GF(2^8), then the affine map; walked along powers of the generator 3."""
    box = bytearray(256)
    power, inverse = 1, 1
    while True:
        power ^= (power << 1) ^ (0x11B if power & 0x80 else 0)
        power &= 0xFF
        inverse ^= inverse << 1
        inverse ^= inverse << 2
        inverse ^= inverse << 4
        inverse &= 0xFF
        inverse ^= 0x09 if inverse & 0x80 else 0
        turned = inverse
        for count in range(1, 5):
            turned ^= (inverse << count | inverse >> (8 - count)) & 0xFF
        box[power] = turned ^ 0x63
        if power == 1:
            break
    box[0] = 0x63
    return bytes(box)


def round_keys(key: bytes) -> list[bytes]:
    """The 15 round keys of 16 bytes each."""
    box, words, constant = _s_box(), [key[at:at + 4] for at in range(0, 32, 4)], 1
    while len(words) < 4 * (_ROUNDS + 1):
        last = words[-1]
        if len(words) % 8 == 0:
            last = bytes(box[byte] for byte in last[1:] + last[:1])
            last = bytes([last[0] ^ constant]) + last[1:]
            constant <<= 1
        elif len(words) % 8 == 4:
            last = bytes(box[byte] for byte in last)
        words.append(bytes(a ^ b for a, b in zip(words[-8], last, strict=True)))
    return [b"".join(words[at:at + 4]) for at in range(0, len(words), 4)]


def _swapped(data: bytes) -> bytes:
    """Each word of 4 bytes the other way round, as code without AES instructions keeps it on x86."""
    return b"".join(data[at:at + 4][::-1] for at in range(0, len(data), 4))


def traces(key: bytes) -> dict[str, bytes]:
    """Everything of 16 bytes and more that gives the key, or messages under it, away; by a name."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305  one block: that is what H is
    hashing = encryptor.update(bytes(16)) + encryptor.finalize()
    doubled = int.from_bytes(hashing, "big")
    doubled = (doubled << 1 & (1 << 128) - 1) ^ (0xC2 << 120 | 1 if doubled >> 127 else 0)
    found = {"key": key, "hash key": hashing, "hash key, reversed": hashing[::-1],
             "hash key, doubled": doubled.to_bytes(16, "little"),
             "hash key, doubled, swapped": doubled.to_bytes(16, "little")[8:] + doubled.to_bytes(16, "little")[:8]}
    for number, part in enumerate(round_keys(key)):
        found |= {f"round key {number}": part, f"round key {number}, swapped": _swapped(part)}
    return found
