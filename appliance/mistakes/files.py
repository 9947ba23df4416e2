"""The kind of a file that was given in the place of another: for a refusal, never to accept
anything by it.

Nothing of the file's content is repeated: it may be a secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from appliance.codec.filekind import LOOKED_AT, FileKind
from appliance.mistakes import weights

_KEY = FileKind("the key of a model or a state disk", "it is for --key, and for nobody to see")
_PINNED = "policies name it in a model block, which is printed by: appliance model pin FILE"
_STARTS = (
    (b"GGUF", FileKind("a GGUF model", _PINNED)),
    (b"appliance/sealed-model/", FileKind("a sealed model", _PINNED)),
    (b"appliance/key/", _KEY),
)
_BARE_KEY = re.compile(rb"\s*(?:[0-9a-fA-F]{64}|[A-Za-z0-9+/]{43}=)\s*")
_PEM = re.compile(rb"\s*-----BEGIN ([A-Z0-9 ]{1,40})-----")
_JSON = re.compile(rb'\s*(?:\{\s*["}]|\[\s*["\[{\]0-9-])')
_FORMAT = re.compile(rb'"format"\s*:\s*"appliance/([a-z-]{1,20})/v[12]"')
_FORMATS = {
    b"tenants": FileKind("a list of tenants", "check it with: appliance tenants FILE --policy POLICY"),
    b"machines": FileKind("a list of machines", "check it with: appliance machines show FILE --policy POLICY"),
    b"approvals": FileKind("a file of approvals", "it is for --approvals"),
    b"evidence": FileKind("evidence", "judge it with: appliance verify FILE --policy POLICY"),
    b"measurements": FileKind("measurements of an image", "they are for --measurements"),
    b"reference": FileKind("a portable reference of an image", "it is for --reference"),
    b"golden": FileKind("golden values of a machine", "they are for: appliance image predict DIR --golden FILE"),
    b"image": FileKind("the manifest of an image", "name its folder: appliance image predict DIR"),
}
_AS_HCL = ('policies are HCL: blocks such as appliance { ... }, attributes such as name = "demo"; all of it: appliance '
           "schema")
_SOME_JSON = FileKind("JSON", _AS_HCL)
_JSON_OF_NAMES = re.compile(rb"\{\s*[A-Za-z_][A-Za-z0-9_]*\s*:")
_TOML = re.compile(rb"\[\[?[A-Za-z_][A-Za-z0-9_.-]*\]")
_YAML = re.compile(rb"---|%YAML|-[ \t]|[\"']?[A-Za-z_][A-Za-z0-9_.-]*[\"']?:(?:[ \t]+[^\s{]|[ \t]*\r?\n)")
_BLOCK = re.compile(rb'^[ \t]*+(?:appliance|tee|model)\s++(?:"[^"\n]*+"\s*+)?\{', re.MULTILINE)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BINARY = FileKind("binary data", "give a text file in HCL: appliance schema")
_FOLDER_HINT = ("name the GGUF file itself; a folder of safetensors is converted into one by llama.cpp's "
                "convert_hf_to_gguf.py")
_ADAPTER_FILE = "adapter_config.json"  # of a folder of PEFT
_ADAPTER_HINT = ("it holds a PEFT adapter, which changes another model: merge it into that model (merge_and_unload of "
                 "PEFT), and convert the result with llama.cpp's convert_hf_to_gguf.py")
_POLICY = FileKind("a policy, by its looks", "check it with: appliance check FILE")


def of(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, if it is known; a policy's, too."""
    return _known(start[:LOOKED_AT]) or (_POLICY if _BLOCK.search(start[:LOOKED_AT]) else None)


def instead_of_json(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, where JSON of another kind should be."""
    kind = of(start)
    return None if kind == _SOME_JSON else kind


def foreign(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, where no policy does."""
    start = start[:LOOKED_AT]
    begins = _uncommented(start)
    if _TOML.match(begins):  # two brackets may begin JSON, too
        return FileKind("TOML", _AS_HCL)
    if known := _known(start):
        return known
    if _JSON.match(begins) or _JSON_OF_NAMES.match(begins):
        return _SOME_JSON
    if _YAML.match(begins):
        return FileKind("YAML", _AS_HCL)
    return _BINARY if b"\0" in start[2:64] and start[:2] not in _UTF_16 else None


def _uncommented(start: bytes) -> bytes:
    """The rest of a file behind the byte-order mark, blanks and comments that it begins with."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    while start.startswith((b"#", b"//")):
        start = start.partition(b"\n")[2].lstrip()
    return start


def instead_of_model(start: bytes) -> FileKind | None:
    """The kind of a file that begins so, where a model should be."""
    start = start[:LOOKED_AT]
    found = of(start)
    if found == _SOME_JSON:
        found = weights.json_of(start)
    return found or weights.anything_else(start)


def _known(start: bytes) -> FileKind | None:
    for magic, kind in _STARTS:
        if start.startswith(magic):
            return kind
    if _BARE_KEY.fullmatch(start):
        return _KEY
    if (pem := _PEM.match(start)) is not None:
        return _pem(pem[1].decode())
    if _JSON.match(start):
        known = _FORMAT.search(start)
        return _FORMATS.get(known[1] if known else b"", _SOME_JSON)
    return weights.of(start)


def _pem(label: str) -> FileKind:
    if "PRIVATE" in label:
        return FileKind("a private key in PEM", "it is for --key, and for nobody to see")
    use = ("look at it with: appliance evidence FILE" if label == "CERTIFICATE" else
           "policies name it as printed by: appliance key public FILE")
    return FileKind(f"a {label.lower()} in PEM", use)


def folder_hint(path: Path) -> str:
    """Return the hint for a folder in the place of a file."""
    return _ADAPTER_HINT if os.path.lexists(path / _ADAPTER_FILE) else _FOLDER_HINT
