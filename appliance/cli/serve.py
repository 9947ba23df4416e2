"""`appliance serve FILE`: boot by a policy and serve the API until SIGTERM or Ctrl+C, which drain
it.

Standard output carries the audit log (unless the policy sends it elsewhere), standard error
everything else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.boot.checks import Operator
from appliance.cli.whole import whole
from appliance.service import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy")
    parser.add_argument("--models", metavar="DIR", type=Path, action="append", default=[],
                        help="a folder with model files, besides the policy's own; may be given more than once")
    parser.add_argument("--listen-address", metavar="IP", help="another address, if the policy grants listen_address")
    parser.add_argument("--listen-port", metavar="PORT", type=whole(0, 65535),
                        help="another TCP port (0: any that is free), if the policy grants listen_port")
    parser.add_argument("--log", metavar="FILE", type=Path,
                        help="the audit log's file, a regular one, if the policy grants log_sink")
    parser.add_argument("--json", action="store_true", help="report the boot as JSON lines")
    parser.epilog = ("exit codes: 0 served and drained, 1 the policy has findings, 2 the boot was refused or failed, "
                     "3 something did not end after the drain, as where a disk hangs: memory was wiped; "
                     "130 interrupted before it served")


def run(args: argparse.Namespace) -> int:
    """Boot and serve."""
    operator = Operator(listen_address=args.listen_address, listen_port=args.listen_port, log_sink=args.log)
    return console.run(args.file, operator=operator, model_folders=tuple(args.models), as_json=args.json)
