"""Evidence as dstack hands it out."""

__all__ = ["document", "form", "maps"]
