"""Resource limits that the process needs for nothing: set to zero, for good once its capabilities
are gone."""

from __future__ import annotations

import resource

NOTHING = ("RLIMIT_CORE", "RLIMIT_MSGQUEUE", "RLIMIT_RTPRIO", "RLIMIT_NICE")


def apply() -> bool:
    """No core dumps, message queues or real-time priorities. Locked memory without a limit, since
    weights must be lockable when the capability to ignore that limit is gone; returns whether the
    kernel allowed that. OSError or ValueError as the kernel says it."""
    for name in NOTHING:
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
        return False
    return True
