"""Known answers: cryptography, entropy and kernels are proved before anything is served."""

__all__ = ["run"]
