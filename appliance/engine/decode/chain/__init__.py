"""The samplers' work on logits: one file each, in memory that is wiped. `decode/sampler` has their
order."""

__all__ = [
    "allowed", "candidates", "dry", "ending", "exact", "guidance", "mirostat", "ordering", "penalties", "scratch",
    "sweeping", "temperature",
]
