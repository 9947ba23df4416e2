"""The manual, made from what the program itself has: fields, codes of errors, verbs and their
options."""

__all__ = ["codes", "fields", "pages", "shells", "verbs"]
