"""Evidence as services of confidential computing hand it out, one module a form."""

__all__ = ["chat", "maa", "tinfoil", "token", "trust_authority"]
