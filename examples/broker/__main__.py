"""`python -m examples.broker CONFIG.toml`: read the rules, then serve until interrupted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from appliance.errors import ApplianceError
from examples.broker.rules import read
from examples.broker.server import Server


def main() -> int:
    """Exit 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m examples.broker", description=__doc__)
    parser.add_argument("config", type=Path)
    args = parser.parse_args()
    try:
        rules = read(args.config)
        server = Server(rules)
    except (ApplianceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(rules.rules)} rules, listening at {server.url}", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
