"""Schemas, patterns and grammars that an answer keeps to, token by token, by llguidance. One that
would not be enforced to the letter is refused."""

__all__ = ["compiler", "schema", "spec", "walk"]
