"""Intel TDX: bytes of quotes, signatures, TCB levels, validation, and words for people."""

__all__ = ["abi", "signatures"]
