"""Evidence to a verdict: verification, validation against expectations, and the record of both."""

__all__ = ["collateral_folder", "examine", "halves", "material", "recognise", "validate", "verify"]
