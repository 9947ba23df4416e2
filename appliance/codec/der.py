"""Just enough DER (ITU-T X.690) to take a certificate apart that a strict X.509 parser refuses.

Some RA-TLS libraries write certificates with small faults (an ECDSA algorithm with NULL
parameters). Their evidence must still be read, to be named; nothing that this module reads is
believed without a signature over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import MalformedEvidenceError

BIT_STRING = 0x03
SEQUENCE, OBJECT_IDENTIFIER, BOOLEAN, OCTET_STRING, EXTENSIONS = 0x30, 0x06, 0x01, 0x04, 0xA3
_VERSION = 0xA0
MAX_ELEMENTS = 1024  # side by side; a certificate has a handful of fields and extensions
MAX_IDENTIFIER = 128  # bytes of an object identifier


@dataclass(frozen=True)
class Element:
    """One element: tag byte, content, and the whole with its header."""

    tag: int
    content: bytes
    whole: bytes


def elements(data: bytes) -> list[Element]:
    """The elements that `data` consists of, `MAX_ELEMENTS` at most: an element can be as short as
    two bytes, and an object for each is many times that. Raises MalformedEvidenceError unless
    lengths are exact and shortest."""
    found: list[Element] = []
    at = 0
    while at < len(data):
        if len(found) == MAX_ELEMENTS:
            raise MalformedEvidenceError(f"DER: more than {MAX_ELEMENTS} elements side by side")
        head = data[at:at + 2]
        if len(head) < 2 or head[0] & 0x1F == 0x1F:
            raise MalformedEvidenceError("DER: a header is cut off, or a tag has several bytes")
        start, size = at + 2, head[1]
        if size & 0x80:
            width = size & 0x7F
            size = int.from_bytes(data[start:start + width], "big")
            if not 1 <= width <= 4 or size < 0x80 or size >> 8 * (width - 1) == 0:
                raise MalformedEvidenceError("DER: a length is not in its shortest form")
            start += width
        if size > len(data) - start:
            raise MalformedEvidenceError("DER: an element is longer than what holds it")
        found.append(Element(head[0], data[start:start + size], data[at:start + size]))
        at = start + size
    return found


def unpadded(data: bytes) -> bytes:
    """Return `data` without the zeros behind its first element; as it is if anything else follows.

    An NV index of a TPM is read whole: a certificate in it, and zeros up to the size of the index.
    """
    head, size = data[:2], data[1] if len(data) > 1 else 0
    width = size & 0x7F if size & 0x80 else 0
    end = 2 + width + (int.from_bytes(data[2:2 + width], "big") if width else size)
    whole = len(head) == 2 and head[0] == SEQUENCE and width <= 4 and end < len(data) and not any(data[end:])
    return data[:end] if whole else data


def only(data: bytes, tag: int) -> Element:
    """The one element that `data` is. Raises MalformedEvidenceError if it is another or not alone.
    """
    found = elements(data)
    if len(found) != 1 or found[0].tag != tag:
        raise MalformedEvidenceError(f"DER: expected one element with tag {tag:#04x}")
    return found[0]


def object_identifier(content: bytes) -> str:
    """The dotted form of an OBJECT IDENTIFIER's content. Raises MalformedEvidenceError."""
    if len(content) > MAX_IDENTIFIER:
        raise MalformedEvidenceError(f"DER: an object identifier of {len(content)} bytes, at most {MAX_IDENTIFIER}")
    numbers, value, begins = list[int](), 0, True
    for byte in content:
        if begins and byte == 0x80:
            raise MalformedEvidenceError("DER: a number of an object identifier is not in its shortest form")
        begins = not byte & 0x80
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers or content[-1] & 0x80:
        raise MalformedEvidenceError("DER: an object identifier is cut off")
    first = min(numbers[0] // 40, 2)
    return ".".join(str(number) for number in (first, numbers[0] - 40 * first, *numbers[1:]))


@dataclass(frozen=True)
class RawCertificate:
    """A certificate's public key (DER SubjectPublicKeyInfo) and extensions by OID; nothing of it is
    verified."""

    spki: bytes
    extensions: dict[str, bytes]


def certificate(der: bytes) -> RawCertificate:
    """Take a certificate apart (RFC 5280, section 4.1). Raises MalformedEvidenceError."""
    parts = elements(only(der, SEQUENCE).content)
    if len(parts) != 3 or parts[0].tag != SEQUENCE:
        raise MalformedEvidenceError("certificate: expected body, algorithm and signature")
    body = elements(parts[0].content)
    if body and body[0].tag == _VERSION:
        body = body[1:]
    if len(body) < 6:  # serial number, algorithm, issuer, validity, subject, public key
        raise MalformedEvidenceError("certificate: its body lacks a field")
    found: dict[str, bytes] = {}
    for part in body[6:]:
        if part.tag == EXTENSIONS:
            for extension in elements(only(part.content, SEQUENCE).content):
                oid, value = _extension(extension)
                if oid in found:
                    raise MalformedEvidenceError(f"certificate: extension {oid} stands twice")
                found[oid] = value
    return RawCertificate(body[5].whole, found)


def check_signature_whole(data: bytes) -> None:
    """The signature of a certificate or revocation list is whole bytes: no bit of it is declared
    unused.

    Parsers pass over that count, so that a byte could be altered unnoticed. Raises
    MalformedEvidenceError.
    """
    parts = elements(only(data, SEQUENCE).content)
    if len(parts) != 3 or parts[2].tag != BIT_STRING or parts[2].content[:1] != b"\x00":
        raise MalformedEvidenceError("certificate: the signature is not a string of whole bytes")


def algorithm_is_signed(data: bytes) -> bool:
    """Whether the algorithm beside the signature of a certificate or revocation list is the one
    that the signature covers, to the byte (RFC 5280, sections 4.1.1.2 and 5.1.1.2). Raises
    MalformedEvidenceError."""
    parts = elements(only(data, SEQUENCE).content)
    named = [part.whole for part in elements(parts[0].content) if part.tag == SEQUENCE] if parts else []
    return len(parts) == 3 and named[:1] == [parts[1].whole]  # both begin with numbers, then the algorithm


def _extension(extension: Element) -> tuple[str, bytes]:
    parts = elements(extension.content)
    tags = [part.tag for part in parts]
    if tags not in ([OBJECT_IDENTIFIER, OCTET_STRING], [OBJECT_IDENTIFIER, BOOLEAN, OCTET_STRING]):
        raise MalformedEvidenceError("certificate: an extension is not in form")
    return object_identifier(parts[0].content), parts[-1].content
