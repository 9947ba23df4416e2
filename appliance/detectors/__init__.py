"""Personal data and secrets in text, found by their form, their check digits and the words before
them. No model is used.

    candidates  one candidate, and the means to judge it
    kinds       one file a group of detectors
    folding     a text in its plainest spelling, with the way back to its positions
    table       all detectors, one row each
    stream      the rows that a policy chose, over text that arrives in pieces
    looks       whether any of them, or a pattern, may change a text that nothing in Python reads
    trial       the same over a whole text, with the places of what was found; does not ship
"""

__all__ = ["looks", "stream", "table", "trial"]
