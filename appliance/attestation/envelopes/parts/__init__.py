"""Pieces of envelopes: strict JSON, SCALE, MessagePack, and what an envelope carries."""

__all__ = ["carried", "messagepack", "scale", "sev_json", "strict", "tpm_pieces"]
