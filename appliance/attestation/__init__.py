"""Evidence: what is bound into it, how it is collected, how it is verified."""

__all__ = ["binding", "collector", "event_log", "evidence", "findings", "keyfile", "merkle"]
