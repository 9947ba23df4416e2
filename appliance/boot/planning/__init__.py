"""The plan of what fits: memory, threads, residency and speed, from headers alone."""

__all__ = ["advice", "budget", "cache_accuracy", "fitness", "footprint", "inspection", "machine", "rates",
           "residency", "speed"]
