"""The samplers' work on logits: one file each, in memory that is wiped. `decode/sampler` has their
order."""

__all__ = ["allowed", "min_p", "ordering", "penalties", "scratch", "stage", "top_k", "top_p"]
