"""Evidence to a verdict: verification, validation against expectations, and the record of both."""

__all__ = [
    "collateral_folder", "examine", "expected", "measured_tpm", "measurements", "record",
    "validate", "verify",
]
