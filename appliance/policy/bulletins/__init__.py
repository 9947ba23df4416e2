"""Bulletins of makers: rows with what each asks of machines, and advice that follows from them.

The table only advises. A policy says what evidence must show, and nothing here changes a verdict.
"""

__all__ = ["advice", "bulletin", "lines", "shown", "table"]
