"""The plan of what fits: memory, threads, residency and speed, from headers alone."""

__all__ = ["advice", "budget", "fitness", "footprint", "forecast", "inspection", "machine", "rates", "residency",
           "shape", "speed"]
