"""Kinds of strings with a form of their own: names, hashes, keys, paths, addresses, URLs, texts.

A hash or key field is where people paste secrets by mistake: what looks like one is refused with
`secret=True`, so that no diagnostic repeats it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from appliance.policy.schema.kinds import Kind, Mismatch, expect, shown

KEY_COMMAND = "`appliance key public FILE.pem`"  # which prints a key as a policy has it
_KEY = "public key"
_EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_SECRET = re.compile(r"\s*(sk-|-----BEGIN|AGE-SECRET-KEY|ghp_|hvs\.|eyJ)", re.IGNORECASE)

# Encodings of points of small order, the top bit masked: y coordinates on Ed25519 (RFC 8032), u
# coordinates on Curve25519 (RFC 7748, section 6.1). Under such a key anyone can sign, or read what
# is encrypted to it.
_EITHER = frozenset({"00" * 32, "01" + "00" * 31} | {last + "ff" * 30 + "7f" for last in ("ec", "ed", "ee")})
_SMALL_ORDER = {
    "ed25519": _EITHER | {"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
                          "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"},
    "x25519": _EITHER | {"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
                         "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"},
}


def looks_secret(text: str) -> bool:
    """Say whether a string looks like a key or token rather than the hash or public key it stands
    for."""
    return _SECRET.match(text) is not None


@dataclass(frozen=True)
class Hash(Kind):
    """A digest in lower-case hexadecimal: SHA-256 (64 digits) or SHA-384 (96)."""

    bits: int = 256
    of: str = "file"  # "file" or "key": what is hashed, for the fix

    def parse(self, value: Any) -> str:
        """Return the digest as it is written."""
        command = "appliance key new" if self.of == "key" else f"sha{self.bits}sum FILE"
        expect(value, str, f"the {self.bits // 4} hexadecimal digits that `{command}` prints, in quotes")
        text: str = value
        if looks_secret(text) or (self.of == "key" and not re.fullmatch(r"[0-9A-Fa-f]*", text)):
            raise Mismatch(f"looks like a key itself, not its SHA-{self.bits}",
                          "anyone who reads this file now has the key: make another with `appliance key new`, and "
                          "write the SHA-256 that it prints", secret=True)
        if re.fullmatch(r"[0-9a-fA-F]+", text) and len(text) == self.bits // 4:
            if text != text.lower():
                raise Mismatch("has upper-case digits", f'write "{text.lower()}"')
            if len(set(text)) == 1 or text == _EMPTY_SHA256:
                raise Mismatch("is a place-holder or the hash of nothing", f"write what `{command}` prints")
            return text
        stray = re.search(r"[^0-9a-fA-F]", text)
        found = f"has {len(text)} characters" if stray is None else f"has {shown(stray[0])} in it"
        raise Mismatch(f"{found}, so it is no SHA-{self.bits}", f"write the {self.bits // 4} digits of `{command}`")

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"{self.bits // 4} lower-case hexadecimal digits (SHA-{self.bits})"


@dataclass(frozen=True)
class TaggedHex(Kind):
    """An algorithm's name, a colon, and bytes in lower-case hexadecimal: `ed25519:` and 64 digits,
    say."""

    algorithm: str
    nbytes: int
    noun: str = _KEY

    def source(self) -> str:
        """Say where the value comes from, to go on in a fix."""
        return f", which {KEY_COMMAND} prints as {self.algorithm}:HEX" if self.noun == _KEY else ""

    def parse(self, value: Any) -> str:
        """Return the text as it is written."""
        expect(value, str, f'"{self.algorithm}:" and {2 * self.nbytes} hexadecimal digits{self.source()}')
        text: str = value
        if looks_secret(text):
            raise Mismatch(f"looks like a secret, not a {self.noun}",
                          f"replace that secret everywhere, and write the {self.noun} here{self.source()}", secret=True)
        if re.fullmatch(rf"{self.algorithm}:[0-9a-f]{{{2 * self.nbytes}}}", text) is None:
            raise Mismatch(f"is not a {self.noun} of this form",
                          f'write "{self.algorithm}:" and {2 * self.nbytes} lower-case hexadecimal digits'
                          f"{self.source()}")
        raw = bytes.fromhex(text.split(":")[1])
        if self.nbytes == 32 and (raw[:31] + bytes([raw[31] & 0x7F])).hex() in _SMALL_ORDER[self.algorithm]:
            raise Mismatch("is a point of small order, which protects nothing",
                          f"write a real public key{self.source()}")
        return text

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f'"{self.algorithm}:" and {2 * self.nbytes} lower-case hexadecimal digits'


@dataclass(frozen=True)
class OneOf(Kind):
    """One of several kinds of tagged bytes: keys of several algorithms."""

    kinds: tuple[TaggedHex, ...]

    def source(self) -> str:
        """Say where the value comes from, to go on in a fix."""
        return self.kinds[0].source()

    def parse(self, value: Any) -> str:
        """Return the text as it is written."""
        expect(value, str, self.allowed())
        name = str(value).partition(":")[0]
        return next((kind for kind in self.kinds if kind.algorithm == name), self.kinds[0]).parse(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return "; or ".join(kind.allowed() for kind in self.kinds)


@dataclass(frozen=True)
class Matching(Kind):
    """A string that a whole pattern matches, with the pattern said in words."""

    pattern: str
    words: str
    example: str

    def parse(self, value: Any) -> str:
        """Return the text as it is written."""
        expect(value, str, f'"{self.example}"')
        if re.fullmatch(self.pattern, value, re.ASCII) is None:
            if looks_secret(value):
                raise Mismatch("looks like a secret", "keep secrets out of the policy", secret=True)
            raise Mismatch(f"is {shown(value)}, which has another form", f'write something like "{self.example}"')
        return str(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return self.words


NAME = Matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
                "a name of 1 to 64 letters, digits, dots, dashes and underscores that begins with a letter or digit",
                "demo-1")
VARIABLE = Matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "the name of an environment variable", "MODEL_KEY")
DEVICE = Matching(r"/dev/[a-z][a-z0-9/_-]{0,63}", "the path of a block device below /dev", "/dev/vdb")
RESOURCE = Matching(r"[A-Za-z0-9._-]{1,64}(?:/[A-Za-z0-9._-]{1,64}){0,7}",
                    "1 to 8 names of letters, digits, dots, dashes and underscores with slashes between them",
                    "default/key/demo")
DNS_NAME = Matching(r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
                    r"(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*", "a DNS name in lower case", "llm.example.org")
ADVISORY = Matching(r"INTEL-SA-[0-9]{5}", "the number of an Intel advisory", "INTEL-SA-00837")
API_VERSION = Matching(r"[0-9]{1,2}\.[0-9]{1,3}", "a version of the firmware's interface", "1.55")
TEE_TCB_SVN = Matching(r"[0-9a-f]{32}", "32 lower-case hexadecimal digits: two for each of the 16 components",
                       "05010200000000000000000000000000")
XFAM = Matching(r"0x[0-9a-f]{16}", "0x and 16 lower-case hexadecimal digits, as `appliance evidence` prints XFAM",
                "0x00000000000602e7")
MITIGATIONS = Matching(r"0x[1-9a-f][0-9a-f]{0,15}", "0x and 1 to 16 lower-case hexadecimal digits, the first of which "
                       "is not 0: a bit for each mitigation, as `appliance evidence` prints CURRENT_MIT_VECTOR", "0xb")
CSP_ID = Matching(r"[ -~]{1,127}", "the CSP_ID of a VLEK's certificate, as `appliance evidence` prints it: 1 to 127 "
                  "printable ASCII characters", "CN=cc-us-east-2.amazonaws.com")
FIELD = Matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}(?:\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,7}",
                 "the name of a request field, with dots between the levels", "metadata.user_id")


@dataclass(frozen=True)
class Path(Kind):
    """A path of a file: relative and inside its folder, or absolute where `absolute` says so."""

    absolute: bool = False

    def parse(self, value: Any) -> str:
        """Return the path as it is written."""
        example = "/run/appliance/key" if self.absolute else "model.gguf"
        expect(value, str, f'"{example}"')
        text: str = value
        parts = text.split("/")
        if not text or len(text.encode(errors="replace")) > 255 or not text.isprintable() or "\\" in text:
            raise Mismatch(f"is {shown(text)}, which is no usable path", f'write something like "{example}"')
        if text.startswith("/") != self.absolute:
            raise Mismatch(f"is {shown(text)}, {'a relative' if self.absolute else 'an absolute'} path",
                          "write the whole path" if self.absolute else f'write only "{parts[-1] or example}"')
        if any(part in ("", ".", "..") for part in (parts[1:] if self.absolute else parts)):
            raise Mismatch(f"is {shown(text)}, which has an empty part, . or .. in it", "write the plain path")
        return text

    def allowed(self) -> str:
        """Say in words what is allowed."""
        where = "an absolute path" if self.absolute else "a path relative to the policy's folder or the model folder"
        return f"{where}, without . or .., of at most 255 bytes"


@dataclass(frozen=True)
class IpAddress(Kind):
    """An IP address as a literal: names are looked up through someone else's network."""

    def parse(self, value: Any) -> str:
        """Return the address in its canonical text."""
        expect(value, str, '"127.0.0.1"')
        try:
            found = ipaddress.ip_address(value)
        except ValueError:
            fix = 'write "127.0.0.1"' if value == "localhost" else 'write an address such as "127.0.0.1" or "::1"'
            raise Mismatch(f"is {shown(value)}, not an IP address", fix) from None
        if isinstance(found, ipaddress.IPv6Address) and found.scope_id is not None:
            raise Mismatch(f"is {shown(value)}, which names a zone of one machine",
                          f'write "{str(found).partition("%")[0]}"')
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            raise Mismatch(f"is {shown(value)}, an IPv4 address in IPv6 form", f'write "{found.ipv4_mapped}"')
        return str(found)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return "an IPv4 or IPv6 address (no host name, no zone)"


@dataclass(frozen=True)
class HttpsUrl(Kind):
    """An https URL without user, query or fragment."""

    def parse(self, value: Any) -> str:
        """Return the URL as it is written."""
        expect(value, str, '"https://broker.example.org"')
        text: str = value
        try:
            parts = urlsplit(text)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if "@" in text:
            raise Mismatch("carries a user or password", "leave them out: no secret stands in a policy", secret=True)
        if parts.scheme == "http":
            raise Mismatch("is a plain http URL", f"write {shown('https' + text[4:])}")
        if parts.scheme != "https" or not host or len(text) > 2048 or not re.fullmatch(r"[!-~]+", text):
            raise Mismatch(f"is {shown(text)}, not an https URL", 'write something like "https://broker.example.org"')
        if "?" in text or "#" in text:
            raise Mismatch("has a query or fragment", f"write {shown(text.split('?')[0].split('#')[0])}")
        return text

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return "an https URL without user, query or fragment"


@dataclass(frozen=True)
class FreeText(Kind):
    """Free text of `low` to `high` characters."""

    low: int
    high: int

    def parse(self, value: Any) -> str:
        """Return the text as it is written."""
        expect(value, str, "text in quotes")
        if not self.low <= len(value) <= self.high:
            raise Mismatch(f"has {len(value)} characters", f"write {self.low} to {self.high} characters")
        return str(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"a text of {self.low} to {self.high} characters"
