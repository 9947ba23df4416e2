"""The formats of strings, each as a pattern for the whole string.

A format of JSON Schema is prose: RFC 3339, 5321, 1123, 3986. Where a pattern can have all of it
(`uuid`, `ipv4`), it does. The others have a part, of which every text
conforms. Dates are from 1000 to 2999, with the days of their months; no minute has a leap second.
Host names and mail addresses have no rarities; URIs have a scheme and a host. Formats of OpenAPI
hold for numbers too.
"""

from __future__ import annotations

_YEAR, _LEAP = "[12][0-9]{3}", "(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)"
_DAY28, _DAY30 = "(?:0[1-9]|1[0-9]|2[0-8])", "(?:0[1-9]|[12][0-9]|30)"
_DATE = (f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:{_DAY30}|31)|(?:0[469]|11)-{_DAY30}|02-{_DAY28})|{_LEAP}-02-29)")
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"

_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"  # 62 characters at most, of 63
_HOST = f"{_LABEL}(?:\\.{_LABEL}){{0,3}}"  # 251 of 253
_MAIL = f"[A-Za-z0-9]{{1,15}}(?:[.+_-][A-Za-z0-9]{{1,15}}){{0,3}}@{_LABEL}(?:\\.{_LABEL}){{1,3}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """Eight groups, or fewer around `::`."""
    def groups(count: int) -> str:
        return "" if count == 0 else _GROUP + f"(?::{_GROUP}){{{count - 1}}}"
    short = [f"{groups(left)}::{groups(right)}" for left in range(7) for right in range(7 - left)]
    return "(?:" + "|".join([groups(8), *short]) + ")"


_CHARACTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_REST = f"(?:/{_CHARACTER}*)*(?:\\?(?:{_CHARACTER}|[/?])*)?(?:#(?:{_CHARACTER}|[/?])*)?"
_URI = f"[a-z][a-z0-9+.-]{{0,15}}://{_HOST}(?::[1-9][0-9]{{0,3}})?{_REST}"

_CLOCKED = "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)"
_DAYS = "[0-9]{1,6}D"
_MONTHS = f"[0-9]{{1,6}}M(?:{_DAYS})?"
_YEARS = f"[0-9]{{1,6}}Y(?:{_MONTHS})?"
_DURATION = f"P(?:(?:{_YEARS}|{_MONTHS}|{_DAYS})(?:{_CLOCKED})?|{_CLOCKED}|[0-9]{{1,6}}W)"

_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_VERSIONS = {f"uuid{version}": f"[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{4}}-{version}[0-9A-Fa-f]{{3}}-[89ABab][0-9A-Fa-f]{{3}}-"
             "[0-9A-Fa-f]{12}" for version in range(1, 9)}
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

PATTERNS = {
    "date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}", "duration": _DURATION,
    "email": _MAIL, "idn-email": _MAIL, "hostname": _HOST, "idn-hostname": _HOST,
    "ipv4": f"{_BYTE}(?:\\.{_BYTE}){{3}}", "ipv6": _ipv6(),
    "uri": _URI, "iri": _URI, "uri-reference": _URI, "iri-reference": _URI, "uri-template": _URI,
    "uuid": _UUID, "guid": _UUID, **_VERSIONS,
    "byte": _BASE64, "base64": _BASE64,
    "json-pointer": "(?:/(?:[A-Za-z0-9 _.:@!$&'()*+,;=-]|~[01])*)*",
    "relative-json-pointer": "(?:0|[1-9][0-9]{0,5})(?:#|(?:/(?:[A-Za-z0-9 _.:@!$&'()*+,;=-]|~[01])*)*)",
}

RANGES = {f"{sign}int{bits}": (0, (1 << bits) - 1) if sign else (-1 << bits - 1, (1 << bits - 1) - 1)
          for sign in ("", "u") for bits in (8, 16, 32)}
"""The formats of numbers that are a range, with its ends."""

ANNOTATIONS = frozenset(("int64", "uint64", "float", "double", "decimal", "binary", "password", "enum"))
"""Formats of OpenAPI and Gemini that restrict nothing which JSON can show."""

BESIDE_PATTERN = frozenset(("base64url", "cidrv4", "cidrv6", "cuid", "cuid2", "e164", "ksuid", "lowercase", "nanoid",
                            "ulid", "uppercase", "xid"))
"""Formats of zod, which writes them beside the pattern that they are. Without one they are not known."""

KNOWN = frozenset((*PATTERNS, *RANGES, *ANNOTATIONS))
"""All formats that a schema may name."""
