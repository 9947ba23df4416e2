"""`python -m tests.clients.document`: requests that schemathesis makes from the service's own document. None may
end in a server's error, and answers are as the document says.

    python -m tests.clients.document [--minutes 30] [--policy examples/demo.hcl]

schemathesis comes at its locked version into `build/clients/schemathesis`. Bodies name the model that is there and ask
for few tokens, so that they reach what is behind the checks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.clients import __main__ as clients

BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def reaching(document: dict[str, Any]) -> dict[str, Any]:
    """The document with bodies that pass the first checks."""
    for schema in document["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if "model" in schema.get("required", ()) and "object" not in properties:
            properties["model"] = {"const": clients.MODEL}
            for name in BOUNDS:
                if name in properties:
                    properties[name] = {"type": "integer", "minimum": 1, "maximum": 4}
    return document


def main() -> int:
    """Boot the service, and let schemathesis ask it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--policy", type=Path, default=clients.ROOT / "examples/demo.hcl")
    parser.add_argument("--models", type=Path, default=clients.ROOT / "build/models")
    args = parser.parse_args()
    python = clients._python("schemathesis")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy, port = clients._moved(args.policy, folder, None)
        url = f"http://127.0.0.1:{port}"
        with clients._service(policy, args.models, folder):
            described = folder / "openapi.json"
            described.write_text(json.dumps(reaching(httpx.get(f"{url}/openapi.json").json())))
            return subprocess.run([
                str(python.parent / "schemathesis"), "run", str(described), "--url", url,
                "-H", f"Authorization: Bearer {clients.KEY}", "-c", CHECKS, "--phases", "fuzzing,stateful",
                "--max-time", str(round(60 * args.minutes)), "--continue-on-failure", "-n", "100000"],
                cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
