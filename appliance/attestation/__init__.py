"""Evidence: what is bound into it, how it is collected, how it is verified."""

__all__ = ["binding", "collector", "evidence", "findings", "keyfile", "merkle"]
