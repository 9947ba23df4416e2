"""Evidence: what is bound into it, how it is collected, how it is verified."""

__all__ = ["binding", "evidence", "findings", "keyfile", "merkle"]
