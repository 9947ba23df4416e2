"""Make a release: `make release KEY=builder.pem`, or `python -m release OUT --key builder.pem`.

OUT, a new or empty folder, gets the wheel, the prebuilt kernels, and `contents.json`, which names each
of them and each file of the image's recipe by SHA-256. `contents.json.sig` is the key's Ed25519
signature over its bytes. With `--measurements` the release log in OUT/releases gets an entry of that
image, by the same key. A rehearsal writes to no release log. Nothing is published, and no tag is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance import __version__
from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.cli import passphrase
from appliance.errors import ApplianceError, ImageError
from appliance.imaging.papers import releases
from appliance.signed.releases import HEAD, LOG
from release import parts, problems

ROOT = Path(__file__).parents[1]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder: empty, or made")
    parser.add_argument("--key", metavar="KEY.pem", type=Path, required=True, help="the releaser's Ed25519 key")
    parser.add_argument("--measurements", metavar="FILE", type=Path,
                        help="of the image that is released, signed by the same key: FILE.sig lies beside it")
    parser.add_argument("--log", metavar="DIR", type=Path,
                        help="with --measurements: the release log that goes on, of which OUT gets a copy")
    parser.add_argument("--rehearse", action="store_true", help="go on where the tree cannot be released, and say why")
    args = parser.parse_args()
    if args.log is not None and args.measurements is None:
        parser.error("--log goes with --measurements: without an image nothing is appended")
    return args


def main() -> int:
    """Write everything; 1 if the tree cannot be released, 2 if a file will not do."""
    args = _arguments()
    found = list(problems.of(ROOT))
    for each in found:
        print(f"{'rehearsal' if args.rehearse else 'error'}: {each}", file=sys.stderr)
    if found and not args.rehearse:
        print("  hint: --rehearse makes the files all the same, and names these in them", file=sys.stderr)
        return 1
    try:
        _write(args, found or (["asked for by --rehearse"] if args.rehearse else []))
    except ApplianceError as error:
        print(f"error[{error.code}]: {error.summary}\n  hint: {error.hint}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _write(args: argparse.Namespace, found: list[str]) -> None:
    key = keyfile.ed25519_private_key(args.key, passphrase.ask)
    out: Path = args.out
    if out.exists() and any(out.iterdir()):
        raise ImageError(f"{out} is not empty: what lies there would be signed as part of this release",
                         hint="name an empty folder, or put this one away: it may have the only copy of a release log")
    image = None if args.measurements is None else _image(args.measurements, key)
    out.mkdir(parents=True, exist_ok=True)
    wheels, kernels, recipe = parts.wheel(ROOT, out), parts.kernels(ROOT, out / "kernels"), parts.recipe(ROOT)
    contents = {
        "format": parts.FORMAT, "version": __version__, "commit": parts.git(ROOT, "rev-parse", "HEAD"),
        "rehearsal": found, "wheels": {path.name: parts.sha256(path) for path in wheels}, "recipe": recipe,
        "kernels": kernels, "measurements_sha384": image}
    if image is not None and not found:
        _append(out / "releases", args.log, image, key)
    data = (json.dumps(contents, indent=2, sort_keys=True) + "\n").encode()
    (out / "contents.json").write_bytes(data)
    (out / "contents.json.sig").write_bytes(key.sign(data))
    (out / "release.pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    print(f"{out}: version {__version__}, {len(wheels)} wheel, kernels for {', '.join(kernels) or 'no target'}, "
          f"{len(recipe)} files of the recipe, {'no image' if image is None else 'an image'}"
          f"{', no log: a rehearsal' if found else ''}")


def _image(path: Path, key: Ed25519PrivateKey) -> str:
    """The digest of an image's measurements: those that the key signed, of this version."""
    data, public = path.read_bytes(), key.public_key().public_bytes_raw()
    measured = measurements.signed(data, path.with_name(f"{path.name}.sig").read_bytes(), public)
    if measured.build.version != __version__:
        raise ImageError(f"{path}: measurements of an image of version {measured.build.version}, of which "
                         f"{__version__} is not made", hint="build the image from this tree, and predict it again")
    return hashlib.sha384(data).hexdigest()


def _append(folder: Path, log: Path | None, digest: str, key: Ed25519PrivateKey) -> None:
    """Append an image to a copy of the release log, or begin one."""
    folder.mkdir()
    if log is not None:
        for name in (LOG, HEAD):
            shutil.copy(log / name, folder)
    releases.append(folder, [("release.measurements", {"sha384": digest, "version": __version__})], key)


if __name__ == "__main__":
    sys.exit(main())
