"""`appliance`: dispatch to one module per verb, imported only when its verb is used.

Exit codes shared by all verbs: 0 success, 1 the thing examined has findings or is refused, 2 the command
cannot run (bad usage, missing file), 130 interrupted. A verb documents any further code in its own help.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from appliance import __version__
from appliance.errors import ApplianceError

# verb -> one-line help; the verb `x-y` lives in `appliance.cli.x_y` with `add_arguments` and `run`.
VERBS: dict[str, str] = {
    "check": "check a deployment policy, to the last field",
    "schema": "print the policy reference as Markdown or JSON Schema",
    "digest": "print the digest of a policy",
    "approve": "sign a policy's digest as one of its approvers, or show who has",
    "key": "make an API key and the SHA-256 that goes into the policy",
    "tenants": "sign a list of tenants as a policy's authority, or check a signed one",
    "model": "inspect a model file, or print the pins for a policy",
    "tokenize": "turn text into token ids with a model's tokenizer",
    "infer": "run one prompt through a model that a policy names",
    "plan-memory": "show what a policy's models take of the memory, and what of them is streamed",
    "kernels": "compile the kernels ahead of time, or list them",
    "image": "build a measured VM image from a policy, or boot one",
    "evidence": "tell whether raw hardware evidence is genuine, and what it claims",
    "verify": "tell whether an appliance is what a policy and measurements say, in hardware",
    "connect": "open a local port behind which is nothing but a verified appliance",
    "state": "check a state disk, and print its audit log",
    "serve": "boot by a policy and serve the API",
}


def _parser(verb: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="appliance", description="LLM inference that its operator cannot read and anyone can verify.",
        epilog="exit codes: 0 success, 1 findings or refused, 2 cannot run",
    )
    parser.add_argument("--version", action="version", version=f"appliance {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        sub = verbs.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == verb:
            importlib.import_module(f"appliance.cli.{name.replace('-', '_')}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; an expected error is printed without a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words if word in VERBS), None)
    args = _parser(verb).parse_args(words)
    module = importlib.import_module(f"appliance.cli.{args.verb.replace('-', '_')}")
    try:
        return int(module.run(args))
    except ApplianceError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
