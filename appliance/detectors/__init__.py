"""Personal data and secrets in text, found by their form, their check digits and the words before
them. No model is used.

    row         one detector: an expression for candidates, and a function that judges them
    folding     a text in its plainest spelling, with the way back to its positions
    context     words before a candidate that speak for it, or against it
    checksums   check digits
    numbers     digits with separators: the candidates of all detectors of numbers
    kinds       one file a group of detectors
    table       all detectors, one row each
    stream      the rows that a policy chose, over text that arrives in pieces
    trial       the same over a whole text, with the places of what was found; does not ship
"""

__all__ = ["checksums", "context", "numbers", "row", "stream", "table", "trial"]
