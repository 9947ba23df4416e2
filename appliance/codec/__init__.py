"""Bytes to values and back, one spelling each, nothing malleable."""

__all__ = [
    "brokerjson", "canonical", "cbor", "cborreader", "cursor", "der", "filekind", "jwe", "jws", "printable",
    "regularfile", "strict",
]
