"""Compiled numeric kernels. Imports numpy and numba only; tests compare them with plain twins."""
