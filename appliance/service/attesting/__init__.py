"""Evidence for clients, and the activation of a TPM's credential."""

__all__ = ["activation", "evidences"]
