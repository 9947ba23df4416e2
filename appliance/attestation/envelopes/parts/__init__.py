"""Pieces of envelopes: strict JSON, SCALE, and what an envelope carries."""
