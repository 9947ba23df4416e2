"""Candidates, and the means to judge them: their text, the words before it, check digits.

    row         one detector: an expression for candidates, and a function that judges them
    context     words before a candidate that speak for it, or against it
    checksums   check digits
    numbers     digits with separators: the candidates of all detectors of numbers
"""

__all__ = ["checksums", "context", "numbers", "row"]
