"""Pieces of envelopes: strict JSON, SCALE, and what an envelope carries."""

__all__ = ["carried", "scale", "sev_json", "strict", "tpm_pieces"]
