"""What samplers do to logits: one file each, in memory that is wiped. `decode/sampler` has their order."""
