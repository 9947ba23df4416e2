"""The samplers' work without an index that depends on a token: see docs/concepts/memory-access.md.

    rows       rows of a vocabulary, and the kernels that sweep over them
    left       the candidates that are left
    tallies    adjustments of single tokens
"""

__all__ = ["left", "rows", "tallies"]
