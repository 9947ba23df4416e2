"""Writes docs/formats/sealed-model-vectors/: good sealed files, and each way to spoil one.

    python -m tests.goldens.make_sealed_vectors

Made by `tests.support.sealed_by_spec`, which follows the specification and shares no code with the product.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support import sealed_by_spec as spec
from tests.support.sealed_models import KEY, OTHER_KEY, parts, small, with_gaps

FOLDER = Path(__file__).parents[2] / "docs" / "formats" / "sealed-model-vectors"
SALT, SALT_2 = hashlib.sha256(b"salt").digest(), hashlib.sha256(b"another salt").digest()


def files() -> dict[str, tuple[str, str, bytes]]:
    """Name -> comment, expected class, whole file."""
    gguf = small()
    start, tensors = parts(gguf)
    good = spec.seal(gguf, start, tensors, KEY, SALT, 4096)
    gapped, everything = with_gaps(gguf)
    again = spec.seal(gguf, start, tensors, KEY, SALT_2, 4096)
    other = small(7)
    return {
        "success": ("A matrix in four tiles (three would do), a vector, a tensor of two matrices; gaps are zero",
                    "success", good),
        "success-gaps": ("The same tensors, with bytes between and after them", "success",
                         spec.seal(gapped, start, everything, KEY, SALT, 4096, gaps=True)),
        "tile-order": ("The first two tiles are exchanged", "tampered",
                       good[:4096] + good[8192:12288] + good[4096:8192] + good[12288:]),
        "tile-rollback": ("A tile of another sealing of the same file under the same key", "tampered",
                          good[:4096] + again[4096:8192] + good[8192:]),
        "truncated": ("The last tile is missing", "malformed", good[:-4096]),
        "extended": ("One byte more", "malformed", good + b"\0"),
        "another-sealing": ("Another sealing of the same file than the policy pins", "pin mismatch", again),
        "another-model": ("Another model under the same key and salt", "pin mismatch",
                          spec.seal(other, *parts(other), KEY, SALT, 4096)),
        "plaintext": ("By a sealer who states the SHA-256 of another file than the tiles hold", "tampered",
                      spec.seal(gguf, start, tensors, KEY, SALT, 4096, digest=hashlib.sha256(other).digest())),
        "filler": ("By a sealer who fills up the last group of rows with ones", "tampered",
                   spec.seal(gguf, start, tensors, KEY, SALT, 4096, filler=1)),
    }


def changes(good: bytes) -> dict[str, tuple[str, str, int, bytes]]:
    """Name -> comment, expected class, and bytes to write at an offset of the good file."""
    header = int.from_bytes(good[40:48], "little")

    def flip(at: int) -> tuple[int, bytes]:
        return at, bytes([good[at] ^ 1])

    return {
        "version": ("Version 1", "unsupported", 23, b"1"),
        "magic": ("A bit of the magic", "malformed", *flip(0)),
        "tile-size": ("A tile size of 4097 bytes", "malformed", *flip(24)),
        "flags": ("A flag without a meaning", "malformed", 28, b"\2"),
        "header-size": ("A GGUF header of more than 2^63 bytes", "malformed", 47, b"\x80"),
        "header-padding": ("A bit of the padding after the header", "malformed", *flip(4095)),
        "salt": ("A bit of the salt", "wrong key", *flip(48)),
        "sha256": ("A bit of the plaintext's SHA-256", "wrong key", *flip(80)),
        "commitment": ("A bit of the key commitment", "wrong key", *flip(112)),
        "metadata": ("A bit of the GGUF header", "tampered", *flip(200)),
        "header-mac": ("A bit of the header's MAC", "tampered", *flip(144 + header)),
        "tile": ("A bit of the last tile's ciphertext", "tampered", *flip(len(good) - 4096)),
        "tile-tag": ("A bit of the first tile's tag", "tampered", *flip(4096 + 3264)),
        "tile-padding": ("The last bit of the file", "tampered", *flip(len(good) - 1)),
    }


def main() -> None:
    """Write the vectors."""
    FOLDER.mkdir(exist_ok=True)
    made = files()
    good = made["success"][2]
    pin = hashlib.sha256(spec.header_of(good)).hexdigest()
    for name, (comment, expect, body) in made.items():
        own = pin if expect == "pin mismatch" else hashlib.sha256(spec.header_of(body)).hexdigest()
        fields = {"comment": comment, "expect": expect, "key": KEY.hex(), "sealed_header_sha256": own}
        if expect == "success":
            fields["sha256"] = body[80:112].hex()
        (FOLDER / f"{name}.txt").write_text(spec.write_vector(fields, body))
    for name, (comment, expect, at, new) in changes(good).items():
        fields = {"comment": comment, "expect": expect, "key": KEY.hex(), "base": "success", "at": str(at),
                  "bytes": new.hex()}
        (FOLDER / f"{name}.txt").write_text(spec.write_vector(fields, b""))
    (FOLDER / "key.txt").write_text(spec.write_vector(
        {"comment": "Another key", "expect": "wrong key", "key": OTHER_KEY.hex(), "base": "success"}, b""))


if __name__ == "__main__":
    main()
