"""Evidence to a verdict: verification, validation against expectations, and the record of both."""

__all__ = [
    "collateral_folder", "examine", "expected", "halves", "material", "measured_tpm", "measurements",
    "recognise", "record", "validate", "verify",
]
