"""Ask the machine's own hardware for evidence. The only half of attestation that the service needs
to run."""

__all__ = ["attestor", "collect", "halves", "ratls", "release"]
