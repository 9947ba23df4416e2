"""`appliance serve FILE`: boot by a policy and serve the API until SIGTERM.

Exit codes: 0 served and drained; 1 the policy has findings; 2 the boot was refused or failed; 130 interrupted
before the service was ready.
"""

from __future__ import annotations

import argparse
from pathlib import Path

EPILOG = __doc__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = EPILOG
    parser.add_argument("policy", metavar="FILE", type=Path, help="the deployment policy")
    parser.add_argument("--models", metavar="DIR", type=Path, help="where model files are, besides the policy's folder")
    parser.add_argument("--listen-address", metavar="IP", help="another address, if the policy grants listen_address")
    parser.add_argument("--listen-port", metavar="PORT", type=int,
                        help="another TCP port (0: any free one), if the policy grants listen_port")
    parser.add_argument("--log", metavar="FILE", type=Path, help="the audit log's file, if the policy grants log_sink")
    parser.add_argument("--json", action="store_true", help="report boot steps and readiness as JSON lines")


def run(args: argparse.Namespace) -> int:
    """Boot and serve."""
    from appliance.service.console import serve

    return serve(args)
