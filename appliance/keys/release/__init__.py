"""Keys from a key broker, asked by a process that holds nothing else."""

__all__ = ["release", "tpm"]
