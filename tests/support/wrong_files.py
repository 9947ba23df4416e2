"""Files that people have in the place of a GGUF model, each with the words for its kind. All of it is made up."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile

from tests.support.ggufs import build


def _zip(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, b"x" * 40)
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.gguf"))
    return out.getvalue()


def _safetensors() -> bytes:
    head = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}})
    return struct.pack("<Q", len(head)) + head.encode() + bytes(4)


_PAGE = b"<title>404</title><body>SECRET</body></html>"
WRONG: dict[str, tuple[bytes, str]] = {
    "error in JSON": (b'{"error":"Invalid username or password. SECRET"}', "JSON, the error message of a server"),
    "detail in JSON": (b'{ "detail": "Not authenticated" }', "JSON, the error message of a server"),
    "config": (b'{\n  "architectures": ["LlamaForCausalLM"]}', "the configuration of a model (JSON)"),
    "index": (b'{"metadata": {"total_size": 1},"weight_map": {"a": "b"}}', "an index of safetensors files"),
    "other JSON": (b'["SECRET"]', "JSON"),
    "page": (b"<!DOCTYPE html>\n<html>" + _PAGE, "an HTML page"),
    "page without doctype": (b"\n\n<HTML><head>" + _PAGE, "an HTML page"),
    "page with a mark": (b"\xef\xbb\xbf<!-- made by --><html lang='en'>" + _PAGE, "an HTML page"),
    "XML": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML document"),
    "words": (b"Entry not found SECRET", "a text"),
    "words of others": ("Zugriff verweigert: ü SECRET".encode(), "a text"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer"),
    "annex": (b"/annex/objects/SHA256E-s9--00.gguf\n", "a git-annex pointer"),
    "safetensors": (_safetensors(), "a safetensors file"),
    "PyTorch": (_zip("archive/data.pkl", "archive/data/0"), "a PyTorch checkpoint (zip)"),
    "PyTorch by name": (_zip("pytorch_model/data.pkl"), "a PyTorch checkpoint (zip)"),
    "arrays": (_zip("weights.npy"), "arrays of NumPy"),
    "zip": (_zip("model.gguf"), "a zip archive"),
    **{f"pickle {number}": (pickle.dumps({"w": [1, 2]}, number), "a pickle of Python") for number in (2, 3, 4, 5)},
    "gzip": (gzip.compress(build()), "a gzip archive"), "bzip2": (bz2.compress(build()), "a bzip2 archive"),
    "xz": (lzma.compress(build()), "an xz archive"), "tar": (_tar(), "a tar archive"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00", "a Zstandard archive"), "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", "a 7z archive"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file"),
    "NumPy": (b"\x93NUMPY\x01\x00v\x00", "an array of NumPy"),
    "ONNX": (b"\x08\x07\x12\x07pytorch\x1a\x051.9", "an ONNX model"),
    "TFLite": (b"\x1c\0\0\0TFL3" + bytes(8), "TensorFlow"),
    "llamafile": (b"MZqFpD='\n", "a llamafile"), "program": (b"\x7fELF\2\1\1" + bytes(90), "a program or library"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(20), "a picture"), "PDF": (b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
    "empty": (b"", "an empty file"), "broken off": (b"GG", "a GGUF file cut short"),
}
"""Refused as malformed: "this is KIND; needed: a GGUF file"."""

OLD: dict[str, tuple[bytes, str]] = {
    "GGML": (b"lmgg" + bytes(60), "GGML's format from before GGUF"),
    "GGJT": (b"tjgg\x03\0\0\0" + bytes(60), "GGML's format from before GGUF"),
    "version 1": (b"GGUF\x01\0\0\0" + bytes(60), "GGUF version 1"),
    "big-endian": (b"GGUF\0\0\0\x03" + bytes(60), "the file is big-endian"),
}
"""Refused as unsupported."""
