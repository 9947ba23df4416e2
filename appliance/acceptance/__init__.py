"""The acceptance of a machine: an image boots on it, and each attack of the table is tried.

A bundle keeps what clients saw, so that anybody may judge it again. Nothing here ships.

A verdict in a bundle is never believed: it is made again from the evidence.
"""

__all__ = ["attacks", "judge", "machine", "materials", "trial"]
