"""Incidents, rehearsed: the commands of each guide in a folder that is thrown away, and whether what
should refuse then does. Nothing here ships.

A rehearsal runs the commands themselves, each in a process of its own, and looks at their exit
codes and words. It touches no deployment.
"""

__all__ = ["scene", "table"]
