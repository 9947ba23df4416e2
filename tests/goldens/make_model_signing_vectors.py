"""Make `bundles/`: bundles by the public `model-signing` package, for keys of each curve and for a certificate.

Run it in an environment of its own (`pip install model-signing==1.1.1 pyopenssl`), from the repository's root. Private
keys are thrown away; bundles and public keys are kept. The package verifies each bundle before it is kept.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import model_signing

OUT = Path(__file__).parent / "bundles"
CONTENT = {"tiny.gguf": b"GGUF of a test", "config.json": b"{}"}
CURVES = {"p256": "P-256", "p384": "P-384", "p521": "P-521"}


def run(*words: str | Path) -> bytes:
    """One call of openssl."""
    return subprocess.run(["openssl", *words], check=True, capture_output=True).stdout


def certificate(folder: Path, name: str, signer: str | None, extensions: str) -> None:
    """A certificate for a new P-256 key."""
    key, request, made = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
    (folder / "ext").write_text(extensions)
    run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    run("req", "-new", "-key", key, "-subj", f"/CN=Example {name}", "-out", request)
    by = ["-signkey", key] if signer is None else ["-CA", folder / f"{signer}.pem", "-CAkey", folder / f"{signer}.key",
                                                   "-CAcreateserial"]
    run("x509", "-req", "-in", request, *by, "-days", "3650", "-sha256", "-extfile", folder / "ext", "-out", made)


def public(key: Path) -> str:
    """A public key's point, compressed, in hex."""
    der = run("ec", "-in", key, "-pubout", "-conv_form", "compressed", "-outform", "DER")
    size = {0x39: 33, 0x46: 49, 0x58: 67}.get(der[1])
    return der[-(size or 33):].hex()


def main() -> None:
    """Write all."""
    told = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = folder / "tiny"
        model.mkdir()
        for name, content in CONTENT.items():
            (model / name).write_bytes(content)
        for curve, openssl in CURVES.items():
            key, pub = folder / f"{curve}.key", folder / f"{curve}.pub"
            run("genpkey", "-algorithm", "ec", "-pkeyopt", f"ec_paramgen_curve:{openssl}", "-out", key)
            run("pkey", "-in", key, "-pubout", "-out", pub)
            made = OUT / f"{curve}.sigstore"
            model_signing.signing.Config().use_elliptic_key_signer(private_key=key).sign(model, made)
            model_signing.verifying.Config().use_elliptic_key_verifier(public_key=pub).verify(model, made)
            told[curve] = f"{curve}:{public(key)}"
        authority = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n"
        certificate(folder, "root", None, authority)
        certificate(folder, "middle", "root", authority)
        certificate(folder, "publisher", "middle", "keyUsage=critical,digitalSignature\n"
                    "subjectAltName=email:models@publisher.example,URI:https://publisher.example/models\n")
        made = OUT / "certificate.sigstore"
        model_signing.signing.Config().use_certificate_signer(
            private_key=folder / "publisher.key", signing_certificate=folder / "publisher.pem",
            certificate_chain=[folder / "middle.pem", folder / "root.pem"]).sign(model, made)
        model_signing.verifying.Config().use_certificate_verifier(
            certificate_chain=[folder / "root.pem"]).verify(model, made)
        told["certificate"] = f"p256:{public(folder / 'publisher.key')}"
        for name in ("root", "middle"):
            told[f"{name}_sha256"] = run("x509", "-in", folder / f"{name}.pem", "-noout", "-fingerprint",
                                         "-sha256").decode().strip().split("=")[1].replace(":", "").lower()
    (OUT / "keys.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
