"""The plan of what fits: memory, threads, residency and speed, from headers alone."""
