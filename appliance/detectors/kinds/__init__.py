"""The detectors: one file a group, each with its rows. A file knows forms, check digits and words
of its own group only."""

__all__ = ["addresses", "birth", "email", "lettered", "national", "payment", "phone", "secret"]
