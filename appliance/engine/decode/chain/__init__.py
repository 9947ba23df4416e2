"""The samplers' work on logits: one file each, in memory that is wiped. `decode/sampler` has their
order."""
