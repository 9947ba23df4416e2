"""Compiled numeric kernels. Imports numpy and numba only; every public kernel has a plain twin in `reference`."""
