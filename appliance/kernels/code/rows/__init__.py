"""Work on rows: norms, rotations, activations, quantisation."""
