"""docs/concepts/nonces.md has every use of a cipher in the sources, each with a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import cipher_uses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/concepts/nonces.md").read_text()


def _rows(heading: str) -> list[list[str]]:
    """The cells of a heading's table, links without their targets."""
    part = re.sub(r"\]\([^)]*\)", "]", PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])
    rows = [[cell.strip().replace("[", "").replace("]", "") for cell in line.strip("|").split("|")]
            for line in part.splitlines() if line.startswith("|")]
    return rows[2:]


def _spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_use_of_a_cipher_is_in_the_table() -> None:
    """Functions that make a cipher or encrypt are those of the page: none is missing, and none is gone."""
    named = {f"{_spans(file)[0]}: {name}" for _, file, names in _rows("Their places") for name in _spans(names)}
    assert len(named) > 40
    assert cipher_uses.uses() == named


def test_compiled_code_does_not_encrypt() -> None:
    """Libraries are called to decrypt alone, and no source in another language has a cipher."""
    assert set() == cipher_uses.native()


def test_every_row_has_a_counter_and_a_test() -> None:
    """No cell is empty, each row has places, and its tests are there."""
    rows = _rows("The uses")
    assert len(rows) > 12
    assert {row[0] for row in rows} == {row[0] for row in _rows("Their places")}
    tests = {name for path in (ROOT / "tests").rglob("test_*.py")
             for name in (path.stem, *re.findall(r"def (test_[a-z0-9_]+)", path.read_text()))}
    for row in rows:
        assert 5 == len(row) == len(list(filter(None, row))), row
        assert _spans(row[4]), row
        assert set() == set(_spans(row[4])) - tests, row


@pytest.mark.parametrize(("source", "name"), [
    ("def f(key):\n    return ChaCha20Poly1305(key)\n", "f"),
    ("class A:\n    def f(self):\n        def g():\n            aead.AESGCM(self.key)\n", "A.f.g"),
    ("X = Suite(1, 2, 3)\n", "module"),
    ("def f(cipher):\n    cipher.encrypt_into(b'', b'', None, b'')\n", "f"),
    ("from cryptography.hazmat.primitives.ciphers.aead import AESGCM as Quiet\n", "module"),
    ("def f():\n    return ssl.create_default_context()\n", "f"),
])
def test_uses_are_found(source: str, name: str) -> None:
    """By class, by method, in a method, outside of functions, under another name."""
    assert {name} == cipher_uses.in_source(source)


def test_what_is_no_cipher_is_left_alone() -> None:
    """A class of the same name, of a module that has none."""
    source = "def f(x):\n    return decimal.Context(prec=x), x.decrypt(x), AESGCM.generate_key(256)\n"
    assert set() == cipher_uses.in_source(source)
