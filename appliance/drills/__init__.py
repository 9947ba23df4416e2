"""Incidents, rehearsed in a folder that is thrown away: the commands of each guide, and whether the
right things refuse afterwards. Nothing here ships.

A rehearsal runs the commands themselves, each in a process of its own, and looks at their exit
codes and words. It touches no deployment.
"""

__all__ = ["scene", "table"]
