"""The firmware that runs below a guest and holds its TPM, by the hardware that measured it.

This half is the verifier's and does not ship.
"""

__all__ = ["judge"]
