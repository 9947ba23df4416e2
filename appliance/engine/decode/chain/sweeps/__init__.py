"""Candidates and adjustments without an index that depends on a token, by the sweeps of
`chain/sweeping`.

    left       the candidates that are left
    tallies    adjustments of single tokens
"""

__all__ = ["left", "tallies"]
