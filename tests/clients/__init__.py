"""Client libraries against a booted service, at the versions in the lock files of this folder: part
of `make soak`."""
