"""Files that people take for a GGUF model, by their first bytes: other formats of weights,
archives, and what a server sends in the place of a file.

Nothing of a file's content is repeated, and nothing is accepted by it.
"""

from __future__ import annotations

import re

from appliance.codec.filekind import LOOKED_AT, FileKind

_CONVERT = "convert the model with llama.cpp's convert_hf_to_gguf.py, or take a GGUF file of it"
_MERGE = ("it changes another model: merge it into that model (merge_and_unload of PEFT), and convert the result with "
          "llama.cpp's convert_hf_to_gguf.py")
_FETCH = "it may be what a server sent in the place of the file: fetch the GGUF file again, and look at its size"
_UNPACK = "unpack it, and name the GGUF file that is in it"
_NEVER_OPENED = "it can hold programs and is never opened here: " + _CONVERT

_STARTS: tuple[tuple[bytes, FileKind], ...] = (
    (b"version https://git-lfs.github.com/spec/", FileKind(
        "a Git LFS pointer, which stands for a file", "fetch the file itself: git lfs pull")),
    (b"/annex/objects/", FileKind(
        "a git-annex pointer, which stands for a file", "fetch the file itself: git annex get")),
    *((magic, FileKind("a model in GGML's format from before GGUF",
                       "take a GGUF file of the model, or convert its original weights with llama.cpp's "
                       "conversion scripts"))
      for magic in (b"lmgg", b"fmgg", b"tjgg", b"algg")),
    (b"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file, as of Keras", _CONVERT)),
    (b"\x93NUMPY", FileKind("an array of NumPy", _CONVERT)),
    (b"\x1f\x8b", FileKind("a gzip archive", _UNPACK)),
    (b"\xfd7zXZ\0", FileKind("an xz archive", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", FileKind("a Zstandard archive", _UNPACK)),
    (b"\x04\x22\x4d\x18", FileKind("an LZ4 archive", _UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (b"Rar!\x1a\x07", FileKind("a RAR archive", _UNPACK)),
    (b"MZqFpD", FileKind("a llamafile, a program with a model in it", "unzip it, and name the GGUF file in it")),
)
_OTHERS: tuple[tuple[bytes, FileKind], ...] = (
    (b"\x7fELF", FileKind("a program or library (ELF)", _FETCH)),
    (b"MZ", FileKind("a program of Windows", _FETCH)),
    (b"%PDF-", FileKind("a PDF document", _FETCH)),
    (b"\x89PNG\r\n\x1a\n", FileKind("a picture (PNG)", _FETCH)),
    (b"\xff\xd8\xff", FileKind("a picture (JPEG)", _FETCH)),
)
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:\x95|[\x80-\x8e}\](cq])")  # a protocol, then an opcode that begins a value
_ONNX = re.compile(rb"\x08[\x03-\x20]\x12.(?:pytorch|onnx|tf2onnx|keras2onnx|skl2onnx|optimum)", re.DOTALL)
_HTML_PAGE = FileKind("an HTML page", "a server sent a page in the place of the file (a log-in, an error, a preview); "
                      "fetch the file itself, on Hugging Face by /resolve/ in place of /blob/")
_XML_PAGE = FileKind("an XML document, the error message of a server by its looks", _FETCH)
_BOM = b"\xef\xbb\xbf"
_HTML = re.compile(rb"\s*(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html|head|body|title|script|meta)\b",
                   re.IGNORECASE | re.DOTALL)
_XML = re.compile(rb"\s*<(?:\?xml\b|[A-Za-z][A-Za-z0-9:_-]{0,60}[\s>/])")
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*["\[{\]0-9-])')
_JSON_KINDS = (
    (re.compile(rb'\{\s*"(?:error|errors|message|detail|msg|statusCode|status)"\s*:'),
     FileKind("JSON, the error message of a server by its looks", _FETCH)),
    (re.compile(rb'"weight_map"\s*:'), FileKind("an index of safetensors files (JSON)", _CONVERT)),
    (re.compile(rb'"peft_type"\s*:'), FileKind("the configuration of a PEFT adapter (JSON)", _MERGE)),
    (re.compile(rb'"(?:architectures|model_type|transformers_version)"\s*:'),
     FileKind("the configuration of a model (JSON)", _CONVERT)),
)
_SOME_JSON = FileKind("JSON", _FETCH)
_TEXT_NBYTES = 512  # of a file that is taken for text


def of(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, if it is one that people take for a model."""
    start = start[:LOOKED_AT]
    for magic, kind in _STARTS:
        if start.startswith(magic):
            return kind
    return _archive(start) or _weights(start) or _page(start)


def json_of(start: bytes) -> FileKind | None:
    """The kind of JSON in the place of a model."""
    if not _JSON.match(start.removeprefix(_BOM)):
        return None
    return next((kind for pattern, kind in _JSON_KINDS if pattern.search(start)), _SOME_JSON)


def anything_else(start: bytes) -> FileKind | None:
    """The answer for a file of no other kind: empty, a part of a magic, text, or no model at all.
    """
    for magic, kind in _OTHERS:
        if start.startswith(magic):
            return kind
    if not start:
        return FileKind("an empty file", "its download failed, or has not begun; fetch the GGUF file again")
    if len(start) < 4 and b"GGUF".startswith(start):
        return FileKind("a GGUF file cut short", "its download broke off; fetch it again")
    if _is_text(start[:_TEXT_NBYTES]):
        return FileKind("a text", _FETCH)
    return None


def _archive(start: bytes) -> FileKind | None:
    if start.startswith(b"PK\x03\x04"):
        if b"data.pkl" in start or b"archive/" in start or b"/byteorder" in start:
            return FileKind("a PyTorch checkpoint (zip)", _NEVER_OPENED)
        if b".npy" in start:
            return FileKind("arrays of NumPy (npz)", _CONVERT)
        return FileKind("a zip archive", _UNPACK)
    if start.startswith((b"PK\x05\x06", b"PK\x07\x08")):
        return FileKind("a zip archive", _UNPACK)
    if start[257:262] == b"ustar":
        return FileKind("a tar archive", _UNPACK)
    return FileKind("a bzip2 archive", _UNPACK) if _BZIP2.match(start) else None


def _weights(start: bytes) -> FileKind | None:
    length = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 2 <= length <= 100 << 20 and start[9:10] in (b'"', b"}", b" ", b"\n"):
        if b'"base_model.model.' in start:
            return FileKind("a safetensors file of a PEFT adapter", _MERGE)
        return FileKind("a safetensors file", _CONVERT)
    if _PICKLE.match(start):
        return FileKind("a pickle of Python, an old PyTorch checkpoint by its looks", _NEVER_OPENED)
    if start[4:8] == b"TFL3":
        return FileKind("a TensorFlow Lite model", _CONVERT)
    return FileKind("an ONNX model", _CONVERT) if _ONNX.match(start) else None


def _page(start: bytes) -> FileKind | None:
    start = start.removeprefix(_BOM)
    if _HTML.match(start):
        return _HTML_PAGE
    return _XML_PAGE if _XML.match(start) else None


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # more than a character that is cut at the end
            return False
        text = start[:error.start].decode()
    return bool(text) and all(letter.isprintable() or letter in "\t\r\n\f\ufeff" for letter in text)
