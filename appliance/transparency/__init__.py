"""Trees over records, and signed notes about them: C2SP's formats for logs that all can check."""

__all__ = ["checkpoint", "ed25519", "note", "proofs", "reading", "tree"]
