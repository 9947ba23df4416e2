"""A request's body as a JSON object, read strictly: what is wrong with it is said, and where.

Two readers of one body must not disagree about it, so duplicate keys, NaN, infinities and halves of
characters are refused (RFC 8259 leaves them open). A refusal tells the line,
column and byte. It quotes no text of the body, except a key that stands twice.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from typing import Any

from appliance.api.problems import RequestError

MAX_KEYS = 4096  # of one object
DEEP = 256  # the level whose place is reported where a body is nested too deeply
LOOKED_AT = 1 << 14  # brackets and texts that are searched for a place; their search runs in Python

_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_DIGITS = sys.int_info.default_max_str_digits
# Each pattern matches up to what is searched for, in one pass and without backtracking.
_WHOLE_CHARACTERS = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+", re.DOTALL)
_NO_CONSTANT = re.compile(rf'(?:[^"NI-]++|{_TEXT}|-(?!I))*+', re.DOTALL)
_NO_LONG_NUMBER = re.compile(
    rf'(?:[^"0-9]++|{_TEXT}|[0-9]++(?:\.[0-9]++(?:[eE][+-]?+[0-9]++)?+|[eE][+-]?+[0-9]++)'
    rf'|[0-9]{{1,{_DIGITS}}}+(?![0-9]))*+', re.DOTALL)
_TOKEN = re.compile(rf'({_TEXT})|[\[\]{{}},:]|"[\s\S]*+', re.DOTALL)  # a text without an end is the last

# The rest of a text that ends amid a word, a number or an escape
_CUT = re.compile(r"(?:t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|-|\.|[eE][+-]?|\\?u[0-9a-fA-F]{0,4})?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x78\x9c", "deflate"))


class _TwiceError(Exception):
    """A key stands twice in one object."""


def read(body: bytes) -> dict[str, Any]:
    """Return the object that a body holds. RequestError says what is wrong with it, and where."""
    text = _decoded(body)
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)
    except _TwiceError as error:
        raise _twice(text, error.args[0]) from None
    except _ConstantError:
        raise _malformed("JSON has no NaN and no infinities", text, _end(_NO_CONSTANT, text)) from None
    except json.JSONDecodeError as error:
        raise _malformed(_finding(text, error), text, _place(text, error)) from None
    except RecursionError:
        raise _too_deep(text) from None
    except ValueError:  # the only other one
        raise _malformed(f"a number has more than {_DIGITS} digits", text, _end(_NO_LONG_NUMBER, text)) from None
    if "\\u" in text and (lone := _end(_WHOLE_CHARACTERS, text)) < len(text):
        raise _malformed("a text has a lone surrogate, half of a character", text, lone)
    if not isinstance(document, dict):
        kind = {list: "a list", str: "a text", bool: "a boolean", type(None): "null"}.get(type(document), "a number")
        raise RequestError("malformed_json", f"the body is not a JSON object; found: {kind}")
    return document


def _decoded(body: bytes) -> str:
    """Return a body's text, which is UTF-8 without a byte order mark (RFC 8259 §8.1)."""
    if not body.strip(b" \t\r\n"):
        raise RequestError("malformed_json", "the body is empty; a JSON object is required")
    for magic, name in _COMPRESSED:
        if body.startswith(magic):
            raise RequestError("malformed_json", f"the body is compressed ({name}); send it as plain JSON")
    if body.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in body[:4]:
        raise RequestError("malformed_json", "the body is in UTF-16 or UTF-32; send it in UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise RequestError("malformed_json", "the body begins with a byte order mark (EF BB BF), which JSON does not "
                                             "have; send it without, in Python by the encoding utf-8, not utf-8-sig")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        before = body[:error.start].decode("utf-8")
        raise _malformed(_undecodable(body, error), before, len(before)) from None


def _undecodable(body: bytes, error: UnicodeDecodeError) -> str:
    first, second = body[error.start], body[error.start + 1:error.start + 2]
    if first == 0xED and b"\xa0" <= second <= b"\xbf":
        return "a text has a lone surrogate, half of a character"
    if error.reason == "unexpected end of data":
        return "the body is cut off inside a character"
    return f"the body is not in UTF-8: the byte 0x{first:02X} does not belong"


class _ConstantError(Exception):
    """NaN or an infinity."""


def _constant(_name: str) -> float:
    raise _ConstantError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise RequestError("invalid_value", f"an object in the body has more than {MAX_KEYS} keys")
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _TwiceError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return result


def _finding(text: str, error: json.JSONDecodeError) -> str:
    """Describe the character that stops the parser. The parser's own words differ between versions
    of Python."""
    place, says = _place(text, error), error.msg.startswith
    rest, before = text[place:place + 16], text[max(0, place - 64):place].rstrip(" \t\r\n")
    constant = next((word for word in _CONSTANTS if rest.startswith(word)), "")
    findings = (
        (says("Unterminated string"), "the body is cut off: a text does not end that begins"),
        (_CUT.fullmatch(text, place), "the body is cut off: it ends before its object does"),
        (says("Invalid control character"),
         f"a text has the control character U+{ord(rest[:1] or ' '):04X}, which must be escaped"),
        (says("Invalid \\"), "a backslash in a text begins no escape of JSON"),
        (says("Extra data"), "text follows the end of the JSON value"),
        (before.endswith(",") and rest[:1] in {"]", "}"}, "a comma stands before a closing bracket"),
        (rest.startswith("'"), "a text is in single quotes; JSON has double quotes"),
        (rest.startswith(("//", "/*", "#")), "JSON has no comments"),
        (constant, f"{constant} is not JSON; write {_CONSTANTS.get(constant)}"),
        (says("Expecting ',' delimiter"), "a comma or a closing bracket is expected"),
        (says("Expecting ':'"), "a colon is expected"),
        (says("Expecting property name"), "a key in double quotes is expected"))
    return next((words for applies, words in findings if applies), "a value is expected")


def _place(text: str, error: json.JSONDecodeError) -> int:
    """Return the place of the fault; for a trailing comma, that of the bracket after it."""
    place = error.pos
    if error.msg.startswith("Illegal trailing comma"):
        place += 1
    while error.msg.startswith(("Expecting", "Illegal")) and text[place:place + 1] in {" ", "\t", "\r", "\n"}:
        place += 1
    return place


def _end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return 0 if match is None else match.end()


def _twice(text: str, key: str) -> RequestError:
    """Return the refusal of an object with a key twice, at the second of them where it is found."""
    message = f"the key {json.dumps(key[:64])} stands twice in one object"
    open_keys: list[set[str] | None] = []  # keys so far, of each object around; None: a list
    tokens = itertools.islice(_TOKEN.finditer(text), LOOKED_AT)
    for token in tokens:
        match token[0][0]:
            case "{":
                open_keys.append(set())
            case "[":
                open_keys.append(None)
            case "}" | "]":
                open_keys.pop()
            case '"' if open_keys and (keys := open_keys[-1]) is not None and _is_key(text, token.end()):
                name = json.loads(token[0])
                if name in keys and name == key:
                    return _malformed(message, text, token.start())
                keys.add(name)
    return RequestError("malformed_json", message)


def _is_key(text: str, end: int) -> bool:
    while text[end:end + 1] in {" ", "\t", "\r", "\n"}:
        end += 1
    return text[end:end + 1] == ":"


def _too_deep(text: str) -> RequestError:
    depth = 0
    for token in itertools.islice(_TOKEN.finditer(text), LOOKED_AT):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == DEEP:
            return _malformed(f"the body is nested too deeply: level {DEEP} begins", text, token.start())
    return RequestError("malformed_json", "the body is nested too deeply")


def _malformed(what: str, text: str, place: int) -> RequestError:
    """Return a refusal with the place: its line and column count from 1, its byte from 0."""
    before = text[:place]
    line, column, byte = before.count("\n") + 1, place - before.rfind("\n"), len(before.encode("utf-8"))
    start = "" if what.startswith("the body") else "the body is not valid JSON: "
    return RequestError("malformed_json", f"{start}{what}, at line {line}, column {column} (byte {byte})")
