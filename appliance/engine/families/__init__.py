"""One record a model family: what its header must say, which tensors it has."""
