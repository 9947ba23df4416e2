"""Fetch the schemas of Kubernetes' own objects: `python fetch_kubernetes_schema.py [FILE]`.

They come from the wheel kubernetes-validate, pinned by SHA-256. Only its definitions of one release of Kubernetes are
read, in the form that refuses fields which it does not know; no code is run. As with the vocabularies: no network, a
warning and exit code 0; exit code 2 if what came is not what is pinned, or nothing came and
APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from fetch_llama_vocab import download

NAME = "kubernetes_validate-1.37.0-py3-none-any.whl"
SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
RELEASE = "v1.37.0"
MEMBER = f"kubernetes_validate/kubernetes-json-schema/{RELEASE}-local-strict/_definitions.json"
TARGET = Path(__file__).parents[2] / "build" / "kubernetes" / f"schema-{SHA256[:16]}.json"
KINDS = {"autoscaling/v2/HorizontalPodAutoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
         "policy/v1/PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
         "networking.k8s.io/v1/NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
         "v1/Service": "io.k8s.api.core.v1.Service"}


def extract(archive: Path) -> dict[str, object]:
    """The definitions of our kinds, with all that they refer to, and the name of each kind's."""
    with zipfile.ZipFile(archive) as wheel:
        definitions = json.loads(wheel.read(MEMBER))["$defs"]
    found: dict[str, object] = {}
    left = list(KINDS.values())
    while left:
        name = left.pop()
        if name not in found:
            found[name] = definitions[name]
            left += re.findall(r'#/\$defs/([\w.-]+)"', json.dumps(definitions[name]))
    return {"kinds": KINDS, "$defs": found}


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching Kubernetes' schemas into {target} (23 MB)", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "kubernetes-validate")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without the schemas a test is skipped",
                  file=sys.stderr)
            return 2 if required else 0
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            print(f"error: {NAME} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 2
        part = Path(folder, "schema.json")
        part.write_text(json.dumps(extract(archive)).replace("/api/_definitions.json#", "#"))
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
