"""A signed feed of bulletins, in the place of the table that this version has. Specification:
docs/formats/bulletin-feed.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import PolicyError
from appliance.policy.bulletins import table
from appliance.policy.bulletins.bulletin import MODELS, Bulletin
from appliance.policy.schema.platform import MinTcb
from appliance.transparency import ed25519

FORMAT: Final = "appliance/bulletin-feed/v1"
DOMAIN: Final = b"appliance/bulletin-feed/v1\n"
MAX_BYTES, MAX_BULLETINS, MAX_TEXT = 1 << 20, 1024, 400
LINES: Final = ("milan", "genoa", "turin", "venice", "tdx")
_KEYS: Final = frozenset({"format", "feed", "signature"})
_FEED_KEYS: Final = frozenset({"bulletins", "issued", "version"})
_ROW_KEYS: Final = frozenset({"attack", "checked", "enforced_from", "first_seen", "flags", "id", "line", "lowest",
                              "microcode", "mitigations", "remark", "sources", "tee_tcb_svn"})
_COMPONENTS: Final = frozenset(MinTcb.model_fields)
FLAGS: Final = frozenset({"alias_check"})  # facts of a machine that a bulletin may ask for
_MOST: Final = 255


def _wrong(problem: str, code: str = "feed-malformed", hint: str | None = None) -> PolicyError:
    return PolicyError(f"bulletin feed: {problem}", code=code,
                       hint=hint or "docs/formats/bulletin-feed.md has the form")


def rows_of(feed: Any) -> tuple[Bulletin, ...]:
    """The bulletins of a feed's `feed` object. Raises PolicyError `feed-malformed`."""
    if not isinstance(feed, dict) or set(feed) != _FEED_KEYS:
        raise _wrong(f"the feed is an object with {', '.join(sorted(_FEED_KEYS))}")
    if type(feed["version"]) is not int or not 0 <= feed["version"] < 1 << 53:
        raise _wrong("version is not a whole number from 0 to 2^53 - 1")
    _day(feed["issued"], "issued")
    values = feed["bulletins"]
    if not isinstance(values, list) or len(values) > MAX_BULLETINS:
        raise _wrong(f"bulletins is not a list of at most {MAX_BULLETINS}")
    rows = tuple(_row(value) for value in values)
    if len({(each.id, each.line) for each in rows}) != len(rows):
        raise _wrong("a bulletin stands twice for one line")
    return rows


def _row(value: Any) -> Bulletin:
    if not isinstance(value, dict) or set(value) != _ROW_KEYS:
        raise _wrong(f"a bulletin is an object with {', '.join(sorted(_ROW_KEYS))}")
    name = _text(value["id"], "id")
    if value["line"] not in LINES:
        raise _wrong(f"{name}: line is one of {', '.join(LINES)}")
    if value["checked"] not in ("vendor", "secondary"):
        raise _wrong(f'{name}: checked is "vendor" or "secondary"')
    due = value["enforced_from"]
    first = _text(value["first_seen"], "first_seen")
    _day(first if first.count("-") == 2 else f"{first}-01", "first_seen")
    return Bulletin(
        name, _text(value["attack"], "attack"), value["line"], first, value["checked"],
        tuple(_text(each, "sources") for each in _list(value["sources"], "sources")),
        lowest=_numbers(value["lowest"], _COMPONENTS, "lowest"),
        microcode=_numbers(value["microcode"], MODELS, "microcode"),
        mitigations=_mask(value["mitigations"]), flags=_names(value["flags"]),
        tee_tcb_svn=_versions(value["tee_tcb_svn"], value["line"]),
        remark="" if value["remark"] == "" else _text(value["remark"], "remark"),
        enforced_from=None if due is None else _day(due, "enforced_from"))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT or not value.isprintable():
        raise _wrong(f"{name} is a text of 1 to {MAX_TEXT} printable characters")
    return value


def _day(value: Any, name: str) -> date:
    try:
        found = date.fromisoformat(value)
    except (ValueError, TypeError):
        raise _wrong(f"{name} is a day such as 2026-08-12") from None
    if found.isoformat() != value:
        raise _wrong(f"{name} is a day such as 2026-08-12")
    return found


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_BULLETINS:
        raise _wrong(f"{name} is not a list")
    return value


def _numbers(value: Any, known: Iterable[str], name: str) -> dict[str, int]:
    if not isinstance(value, dict) or not set(value) <= set(known):
        raise _wrong(f"{name} is an object whose names are of {', '.join(sorted(known))}")
    if not all(type(each) is int and 0 <= each <= _MOST for each in value.values()):
        raise _wrong(f"{name} has numbers from 0 to {_MOST}")
    return dict(value)


def _mask(value: Any) -> int:
    try:
        found = int(value, 16) if isinstance(value, str) else -1
    except ValueError:
        found = -1
    if not 0 <= found < 1 << 64 or hex(found) != value:
        raise _wrong('mitigations is a mask of 64 bits such as "0x10", or "0x0"')
    return found


def _names(value: Any) -> tuple[str, ...]:
    names = _list(value, "flags")
    if not set(map(str, names)) <= FLAGS:
        raise _wrong(f"flags are of {', '.join(sorted(FLAGS))}")
    return tuple(names)


def _versions(value: Any, line: str) -> tuple[int, ...]:
    found = _list(value, "tee_tcb_svn")
    wanted = 2 if line == "tdx" else 0
    if len(found) != wanted or not all(type(each) is int and 0 <= each <= _MOST for each in found):
        raise _wrong("tee_tcb_svn is two numbers from 0 to 255 for the line tdx, and empty for others")
    return tuple(found)


def ours(version: int, issued: date) -> dict[str, Any]:
    """This version's own table as a feed, which nobody has signed yet."""
    return {"version": version, "issued": issued.isoformat(), "bulletins": [_plain(each) for each in table.TABLE]}


def _plain(row: Bulletin) -> dict[str, Any]:
    return {"id": row.id, "attack": row.attack, "line": row.line, "first_seen": row.first_seen, "checked": row.checked,
            "sources": [table.SOURCES[each] for each in row.sources], "lowest": dict(row.lowest),
            "microcode": dict(row.microcode), "mitigations": hex(row.mitigations), "flags": list(row.flags),
            "tee_tcb_svn": list(row.tee_tcb_svn), "remark": row.remark, "enforced_from": None}


def sign(feed: Any, key: Ed25519PrivateKey) -> bytes:
    """The file for a feed, signed. Raises PolicyError if it is not in form."""
    rows_of(feed)
    signature = key.sign(DOMAIN + canonical(feed)).hex()
    return canonical({"format": FORMAT, "feed": feed, "signature": f"ed25519:{signature}"}) + b"\n"


def opened(data: bytes) -> tuple[Any, str | None]:
    """The `feed` object of a file, and its signature if it has one. Nothing of it is believed
    yet."""
    try:
        value = strict.json_value(data) if len(data) <= MAX_BYTES else None
    except ValueError:
        raise _wrong(f"not JSON, or a key stands twice{filekind.instead(data)}") from None
    if value is None:
        raise _wrong(f"more than {MAX_BYTES} bytes")
    if not isinstance(value, dict) or "signature" not in value:
        return value, None
    if set(value) != _KEYS or value["format"] != FORMAT or not isinstance(value["signature"], str):
        raise _wrong("its format is not known", hint=f"known: {FORMAT}")
    return value["feed"], value["signature"]


def parse(data: bytes, keys: Sequence[bytes]) -> tuple[Bulletin, ...]:
    """The bulletins of a file that one of `keys` (Ed25519, 32 bytes) signed. Raises PolicyError
    `feed-malformed`, `feed-signature`."""
    feed, signature = opened(data)
    if signature is None or not any(_signed(feed, signature, key) for key in keys):
        raise _wrong("not signed by the key that was given", "feed-signature",
                     "--feed-key is its publisher's key, which you know from elsewhere")
    return rows_of(feed)


def _signed(feed: Any, text: str, key: bytes) -> bool:
    try:
        raw = bytes.fromhex(text.removeprefix("ed25519:"))
        ed25519.verify(key, raw, DOMAIN + canonical(feed))
    except (InvalidSignature, ValueError):
        return False
    return f"ed25519:{raw.hex()}" == text
