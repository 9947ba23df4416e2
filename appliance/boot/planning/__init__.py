"""What fits: memory, threads, residency and speed, from headers alone."""
