"""Evidence for clients, the activation of a TPM's credential, and the audit log's signed heads."""

__all__ = ["activation", "checkpoints", "evidences", "held_log", "receipts", "timestamps", "witnesses"]
