"""Products of weights and activations, for each block format and kind of CPU."""
