"""Secrets of programs: tokens by their issuer's prefix, private keys, JSON web tokens, and values
of high entropy where a name says that they are secret."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Span

_T = "[A-Za-z0-9_-]"
_PREFIXES = (
    rf"sk-{_T}{{16,250}}|gh[oprsu]_[A-Za-z0-9]{{30,255}}|github_pat_{_T}{{22,255}}|A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{{16}}\b|"
    rf"xox[a-z]-[A-Za-z0-9-]{{10,250}}|xapp-[A-Za-z0-9-]{{10,250}}|AIza{_T}{{33,40}}|hf_[A-Za-z0-9]{{28,50}}|"
    rf"gl(?:pat|dt|rt|ft|ptt|soat|cbt|agent|imt)-[A-Za-z0-9_.-]{{18,80}}|npm_[A-Za-z0-9]{{30,50}}|pypi-{_T}{{40,250}}|"
    rf"[rs]k_(?:live|test)_[A-Za-z0-9]{{10,250}}|whsec_[A-Za-z0-9+/=]{{20,100}}|ya29\.[A-Za-z0-9_.-]{{20,500}}|"
    rf"GOCSPX-{_T}{{20,40}}|1//0{_T}{{30,200}}|SG\.{_T}{{16,32}}\.{_T}{{16,64}}|AGE-SECRET-KEY-1[0-9A-Z]{{58}}|"
    rf"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{{32}}|do[opr]_v1_[0-9a-f]{{64}}",
    rf"dckr_pat_{_T}{{20,60}}|hv[sbr]\.{_T}{{20,250}}|lin_api_[A-Za-z0-9]{{30,60}}|r8_[A-Za-z0-9]{{30,50}}|"
    rf"gsk_[A-Za-z0-9]{{30,80}}|xai-[A-Za-z0-9]{{30,100}}|pplx-[A-Za-z0-9]{{30,80}}|nvapi-{_T}{{30,100}}|"
    rf"rubygems_[0-9a-f]{{40,60}}|sq0[a-z]{{3}}-{_T}{{20,50}}|sntry[su]_[A-Za-z0-9+/=_-]{{30,200}}|figd_{_T}{{30,60}}|"
    rf"ntn_[A-Za-z0-9]{{30,60}}|PMAK-[0-9a-f]{{20,30}}-[0-9a-f]{{30,40}}|dapi[0-9a-f]{{32}}|ATATT3[A-Za-z0-9_=-]{{50,250}}|"
    rf"key-[0-9a-f]{{32}}|[0-9]{{8,10}}:AA{_T}{{32,34}}|hooks\.slack\.com/services/[A-Z0-9]{{8,12}}/[A-Z0-9]{{8,12}}/"
    rf"[A-Za-z0-9]{{18,30}}|[A-Za-z0-9_~.]{{3}}[0-9]Q~[A-Za-z0-9_~.-]{{31,36}}|SK[0-9a-f]{{32}}|"
    rf"[MNO]{_T}{{23,27}}\.{_T}{{6}}\.{_T}{{27,40}}|EAA[A-Za-z0-9]{{60,250}}|tskey-{_T}{{20,100}}|sbp_[0-9a-f]{{40}}|"
    rf"(?:AccountKey|SharedAccessKey|sig)=[A-Za-z0-9+/%]{{40,100}}={{0,2}}")
_TOKEN = rf"(?a)\beyJ{_T}{{8,1000}}\.{_T}{{8,2200}}\.{_T}{{0,700}}"
_BEGIN = (r"-----BEGIN (?:P(?:RIVATE KEY|GP PRIVATE KEY BLOCK)|RSA PRIVATE KEY|DSA PRIVATE KEY|OPENSSH PRIVATE KEY|"
          r"E(?:C|NCRYPTED) PRIVATE KEY)-----")
_CIPHER = r"(?:\s|\\n)Proc-Type: 4,ENCRYPTED(?:\s|\\n)DEK-Info: (?:AES-[12][0-9]{2}|DES-EDE3)-CBC,"
_BODY = r"[A-Za-z0-9+/=\s\\]{40,3850}"
_END = r"-----END (?:[A-Z]{2,9} )?PRIVATE KEY(?: BLOCK)?-----"
_VALUE = r"(?:\"[^\"\n]{6,200}\"|'[^'\n]{6,200}'|`[^`\n]{6,200}`|[^\s\"'`,;]{7,250})"
_PASSWORDS = ("password", "passwort", "passwd", "passphrase", "pwd", "contrase\u00f1a", "contrasena", "senha", "clave",
              "mot de passe", "parola d'ordine")
_KEYS = ("secret", "token", "credential", *(f"{which}[_ .-]?key" for which in (
    "api", "access", "auth", "account", "private", "encryption", "master", "service", "license")))
_OTHERS = tuple(each.partition("[")[0] for each in _KEYS)
_WIDE_PASSWORDS = ("\u092a\u093e\u0938\u0935\u0930\u094d\u0921", "\u5bc6\u7801", "\u53e3\u4ee4", "\u5bc6\u94a5",
                   "kennwort", "senha \u00e9", "password \u00e8")
_OPENINGS = ("mot ", "parola ", "senha ")
_IS = ("is", "ist", "lautet", "est", "es")


def _either(words: Iterable[str]) -> str:
    """Return an expression for words in which no two alternatives begin alike."""
    heads: dict[str, list[str]] = {}
    for word in words:
        size = word.find("]?") + 2 if word.startswith("[") else 1
        heads.setdefault(word[:size], []).append(word[size:])
    parts = []
    for head, tails in heads.items():
        more = _either(tail for tail in tails if tail)
        parts.append(head + (more if all(tails) or not more else f"(?:{more})?"))
    return "|".join(parts) if len(parts) < 2 else f"(?:{'|'.join(parts)})"


_ASSIGNED = (rf"(?ai){_either((*_PASSWORDS, *_KEYS))}[A-Za-z0-9_-]{{0,20}}[\"'`\]]{{0,2}}[ \t]{{0,3}}(?:=>?|:=?)"
             r"[ \t]{0,3}" + _VALUE)
_SAID = rf"(?ai){_either(_PASSWORDS)} {_either(_IS)}:? " + _VALUE
_SAID_WIDE = rf"(?ai)(?:{'|'.join(_WIDE_PASSWORDS)})(?: ?[:=] ?|[\u662f\u4e3a]| )[\"']?[^\s\"'`,;]{{7,80}}"
_BEARER = r"(?ai)\b(?:bearer|basic)[ :]{1,2}[A-Za-z0-9._~+/=-]{12,2000}"
_USER = r"(?a)://[A-Za-z0-9._%+-]{0,64}:[^\s:@/\"'<>]{3,120}@"
_STAND_INS = (
    "xxxxx", "xxxx-", "your", "example", "placeholder", "changeme", "change_me", "change-me", "dummy", "redacted",
    "...", "***", "${", "{{", "$(", "%(", "<", "todo", "insert", "replace", "process.env", "os.environ", "getenv",
    "0000000000", "\u2026", "my_", "_here", "-here")
_TYPES = ("Key", "Token", "Secret", "Bytes")  # of programs
_WORDS = "pass password passwd pwd secret token user admin test none null true false undefined"
_COMMON = frozenset(_WORDS.split())


def _entropy(text: str) -> float:
    """Return bits for each character, by how often each occurs."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _stands_in(text: str) -> bool:
    """Whether a text only shows where a secret would stand."""
    low = text.lower()
    return low in _COMMON or any(mark in low for mark in _STAND_INS)


def _mixed(text: str) -> int:
    """Return how many of small letters, capitals, digits and other characters a text has."""
    return sum(any(test(each) for each in text) for test in (
        str.islower, str.isupper, str.isdecimal, lambda each: not each.isalnum()))


def _issued(candidate: Candidate) -> Iterator[Span]:
    own = candidate.own
    tail = own[4:]
    known = own.startswith(("AKIA", "ASIA", "ABIA", "ACCA"))
    if (known and not _stands_in(own.replace("EXAMPLE", ""))) or (
            _entropy(tail) > 2.6 and any(map(str.isdecimal, tail)) and not _stands_in(own)):
        after = own.find("=") + 1 if own.startswith(("Acc", "Sha", "sig")) else 0
        yield candidate.start + after, len(candidate.text)


def _web_token(candidate: Candidate) -> Iterator[Span]:
    if _entropy(candidate.own) > 3 and not _stands_in(candidate.own):
        yield candidate.start, len(candidate.text)


def _private_key(candidate: Candidate) -> Iterator[Span]:
    body = candidate.own.split("-----")[2]
    if max(map(len, body.replace("\\n", " ").replace("\\r", " ").split()), default=0) >= 32 and _entropy(body) > 3:
        yield candidate.start, len(candidate.text)


def _assigned(candidate: Candidate) -> Iterator[Span]:
    """A value after a name: a password by its mixture, any other by its entropy."""
    own = candidate.own
    quote = own[-1] if own[-1] in "\"'`" else ""
    start = own.rindex(quote, 0, -1) + 1 if quote else _value(own)
    value = own[start:-1] if quote else own[start:].rstrip(".,:?)}]>\u3002\uff0c\u0964")
    name = own[:start].lower()
    if not value or "://" in value or _stands_in(value) or not set(value).isdisjoint(" " if quote else " ({[<"):
        return
    named = any(mark in name for mark in "=:")
    if _random(value) if name.startswith(_OTHERS) else _password(value, named):
        yield candidate.start + start, candidate.start + start + len(value)


def _value(own: str) -> int:
    """Return where a value without quotes begins: after the last space, or the first sign."""
    spaced = max(map(own.rfind, " \t\n\"'`"))
    sign = min((place for mark in "=:\u662f\u4e3a" if (place := own.find(mark, spaced + 1)) >= 0), default=-1)
    before = own[:max(spaced, 0)].rstrip(" \t\"'`")
    if sign < 0 or before.endswith(("=", ":", ">", *_IS, "\u662f", "\u4e3a", "\u00e9", "\u00e8")):
        return spaced + 1
    return sign + 1 + (own[sign + 1:sign + 2] in ("=", ">"))


def _bearer(candidate: Candidate) -> Iterator[Span]:
    own = candidate.own
    start = max(own.rfind(" "), own.find(":")) + 1
    if not _stands_in(own[start:]) and _entropy(own[start:]) >= 3 and any(map(str.isdecimal, own[start:])):
        yield candidate.start + start, len(candidate.text)


def _password(value: str, named: bool) -> bool:
    """Whether a value is neither a word nor a number nor a name of a program. `named`: a sign
    stands before it."""
    if all(part.isidentifier() for part in value.split(".")) and "." in value:
        return False
    kinds, letters = _mixed(value), value.replace("_", "").replace("-", "").isalpha()
    digit = any(map(str.isdecimal, value)) and any(map(str.isalpha, value))
    return len(value) >= 6 and _entropy(value) >= 2 and not letters and (
        (digit and kinds >= 2) or (kinds >= 3 and named))


def _random(value: str) -> bool:
    return len(value) >= 16 and _entropy(value) >= 3 and any(map(str.isdecimal, value)) and any(
        map(str.isalpha, value)) and value.isascii() and value.count("/") < 5 and not value.endswith(_TYPES)


def _user(candidate: Candidate) -> Iterator[Span]:
    own = candidate.own
    value = own[own.index(":", 3) + 1:-1]
    if not _stands_in(value) and not value.isdecimal() and _mixed(value) > 1:
        yield len(candidate.text) - 1 - len(value), len(candidate.text) - 1


ROWS = (
    Detector("secret", rf"(?a)\b(?:{_PREFIXES[0]})", _issued, needs="-_./A", wakes="-_./A"),
    Detector("secret", rf"(?a)\b(?:{_PREFIXES[1]})", _issued, wakes=DIGITS),
    Detector("secret", _TOKEN, _web_token, needs=".", wakes="."),
    *(Detector("secret", _BEGIN + cipher + _BODY + end, _private_key, needs="-", wakes="-")
      for cipher in ("", _CIPHER) for end in ("", _END)),
    Detector("secret", _USER, _user, needs="@", wakes=":"),
    Detector("secret", _ASSIGNED, _assigned, needs="=:", heads=(*_PASSWORDS, *_OTHERS), openings=_OPENINGS),
    Detector("secret", _SAID, _assigned, needs=f"{DIGITS}=:", heads=_PASSWORDS, openings=_OPENINGS),
    Detector("secret", _SAID_WIDE, _assigned, needs=f"{DIGITS}=:", heads=_WIDE_PASSWORDS, openings=_OPENINGS),
    Detector("secret", _BEARER, _bearer, heads=("bearer", "basic")),
)
