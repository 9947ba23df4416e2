"""Every place of the sources that makes a cipher or encrypts: `python -m tests.support.cipher_uses` lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("appliance", "benchmarks", "examples", "image")
MAKERS = frozenset({  # of ciphers; and of what seals connections
    "AESCCM", "AESGCM", "AESGCMSIV", "AESOCB3", "AESSIV", "ChaCha20", "ChaCha20Poly1305", "Cipher", "Fernet", "Suite",
    "Context", "SSLContext", "create_default_context"})
SEALERS = frozenset({"encrypt", "encrypt_into", "encrypt_at_time", "encryptor"})
ELSEWHERE = frozenset({"decimal"})  # modules with a class of one of these names that is not a cipher
NATIVE = re.compile(r"EVP_(?:Encrypt|CipherInit|aes|chacha)|AES_(?:set_)?encrypt|CRYPTO_gcm|crypto_aead|aesenc|AESENC")
SUFFIXES = frozenset({".c", ".go", ".h", ".js", ".py", ".rs", ".S", ".s", ".sh"})


def uses(root: Path = ROOT) -> set[str]:
    """As `path: name`, where a name is of the function or method, or `module` for what stands outside of one."""
    return {f"{path.relative_to(root)}: {name}" for room in ROOMS for path in sorted((root / room).rglob("*.py"))
            for name in in_source(path.read_text())}


def in_source(text: str) -> set[str]:
    """The names of one file."""
    return set(_within(ast.parse(text), ()))


def native(root: Path = ROOT) -> set[str]:
    """Files that name a function of a library that encrypts, without Python's `cryptography`."""
    return {str(path.relative_to(root)) for room in ROOMS for path in sorted((root / room).rglob("*"))
            if path.suffix in SUFFIXES and path.is_file() and NATIVE.search(path.read_text(errors="replace"))}


def _within(node: ast.AST, inside: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = (*inside, node.name)
    if isinstance(node, ast.Call) and _is_use(node.func):
        yield ".".join(inside) or "module"
    if isinstance(node, ast.ImportFrom) and any(each.name in MAKERS and each.asname for each in node.names):
        yield ".".join(inside) or "module"  # under another name it would not be found
    for child in ast.iter_child_nodes(node):
        yield from _within(child, inside)


def _is_use(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        base = called.value.id if isinstance(called.value, ast.Name) else ""
        return called.attr in SEALERS or (called.attr in MAKERS and base not in ELSEWHERE)
    return isinstance(called, ast.Name) and called.id in MAKERS


if __name__ == "__main__":
    print("\n".join(sorted(uses() | native())))
