"""Several appliances behind one local port, and two references for the time of a change.

Each appliance is verified by itself. Nothing here makes one of them trusted for another.
"""

__all__ = ["overlap", "pool", "renewal"]
