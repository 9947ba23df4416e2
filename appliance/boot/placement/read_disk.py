"""A process of its own that reads the launch disk: what parses the host's bytes is not process 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.boot.placement.bind import find_policy
from appliance.errors import ApplianceError


def main(arguments: list[str]) -> int:
    """Copy the policy of a launch disk to where the service reads it; 0, or 1 with the reason on
    standard error."""
    try:
        find_policy(launch=Path(arguments[0]) if arguments else None)
    except ApplianceError as error:
        sys.stderr.write(f"init: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
