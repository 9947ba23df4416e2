"""`appliance model key|seal|unseal|verify|sign`: encrypted model files and what vouches for them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.boot.planning import fitness, inspection
from appliance.cli import numbers
from appliance.cli.bars import bar, bars
from appliance.cli.model.output import sealed_block, warn_unfit
from appliance.codec.printable import quantity
from appliance.errors import FormatError, ModelError, ModelKeyError, PinError, TamperedError, UnsupportedError
from appliance.keys import document, providers
from appliance.keys.providers import Secret
from appliance.models.catalogue import ModelFile
from appliance.models.file import pins, tiling
from appliance.models.sealed import reader
from appliance.policy import inputfile
from appliance.sealing import digests, keyfile, restore, sealing
from appliance.signed import bundle, desk
from appliance.signed import publisher as signature

REFUSALS = (FormatError, UnsupportedError, PinError, TamperedError, ModelKeyError)


def add_actions(actions: Any) -> None:
    """Declare the actions on an argparse sub-parser object."""
    for name, (text, declare) in _DECLARED.items():
        action = actions.add_parser(name, help=text, description=text)
        declare(action)
        action.add_argument("--json", action="store_true", help="print JSON")


def _declare_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the file to make; only its owner can read it")
    parser.add_argument("--key-version", type=numbers.whole(1, document.LAST_VERSION), metavar="N",
                        help="write the version beside the key, for policies that pin one")


def _declare_seal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the sealed file to make")
    parser.add_argument("--key", type=Path, required=True, help="the key file: 32 bytes in hex or base64, mode 0600")
    parser.add_argument("--tile-size", type=numbers.whole(tiling.MIN_TILE_SIZE, tiling.MAX_TILE_SIZE),
                        default=tiling.DEFAULT_TILE_SIZE, metavar="BYTES",
                        help="most bytes of a tile (default: %(default)s)")


def _declare_unseal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a sealed file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the GGUF file to make")
    parser.add_argument("--key", type=Path, required=True, help="the key file")
    _declare_pins(parser)


def _declare_pins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sha256", metavar="HEX", help="the pin of the GGUF file")
    parser.add_argument("--header-sha256", metavar="HEX", help="the pin of the sealed header")


def _declare_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a sealed file, or a GGUF file")
    parser.add_argument("--key", type=Path, help="the key file; without it nothing of a sealed file is authenticated")
    parser.add_argument("--against", type=Path, metavar="GGUF",
                        help="the original: every tensor must have its SHA-256 there")
    _declare_pins(parser)
    parser.add_argument("--publisher", metavar="KEY", help="the publisher's public key: ed25519:HEX; with --bundle "
                        "also p256:, p384: or p521: and the compressed point")
    parser.add_argument("--bundle", metavar="FILE", type=Path,
                        help="the publisher's bundle of the OpenSSF's model-signing, in place of --signature")
    parser.add_argument("--publisher-root", metavar="SHA256",
                        help="the certificate that the bundle's chain must end in; its names are then shown")
    parser.add_argument("--signature", metavar="SIGNATURE",
                        help="the publisher's signature: ed25519:HEX; for a sealed file, a signature of the GGUF file "
                             "counts only with its key or its header's pin")


def _declare_sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a GGUF file, or a sealed one")
    parser.add_argument("--signing-key", type=Path, required=True,
                        help="the publisher's private key: a key file of its own")
    parser.add_argument("--key", type=Path, help="the key file of a sealed model, which is verified first")


def _key(args: argparse.Namespace) -> int:
    keyfile.make(args.file, args.key_version)
    print(json.dumps({"file": str(args.file)}, indent=2) if args.json else
          f"{args.file}: a new key. Keep a copy: nothing opens what it sealed but this key.")
    return 0


def _seal(args: argparse.Namespace) -> int:
    with contextlib.suppress(ModelError):  # which sealing tells
        fitness.header(ModelFile(args.file))
        warn_unfit(args.file)
    with providers.FileKey(args.key).key() as key, bars() as progress:
        done = sealing.seal(args.file, args.output, key.data, tile_size=args.tile_size, progress=progress)
    if args.json:
        print(json.dumps({
            "file": str(done.path), "size": done.size, "sha256": done.sha256.hex(),
            "sealed_header_sha256": done.header_sha256.hex(), "tile_size": done.tile_size, "tiles": done.tiles,
            "kept_tiles": done.kept_tiles}, indent=2))
        return 0
    if done.kept_tiles:
        print(f"{done.kept_tiles} of {quantity(done.tiles, 'tile')} there already", file=sys.stderr)
    print(sealed_block(done.path, done.sha256, done.header_sha256, args.key))
    return 0


def _unseal(args: argparse.Namespace) -> int:
    header_pin, pin = _pins(args)
    with providers.FileKey(args.key).key() as key, bar("unsealing") as progress:
        done = restore.unseal(args.file, args.output, key.data, header_sha256=header_pin, sha256=pin,
                                     progress=progress)
    print(json.dumps({"file": str(args.output), "sha256": done.sha256.hex(), "size": done.size}, indent=2)
          if args.json else f"{args.output}: {done.size:,} bytes, sha256 {done.sha256.hex()}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    """Exit code 0 when everything asked for holds, 1 when the file is refused. Read what is asked
    for first; where that cannot be, refuse nothing."""
    asked = _asked(args)
    with _key_in(args.key) as key:
        try:
            found = _verified(args, asked, key)
        except REFUSALS as error:
            print(f"error[{error.code}]: {error}", file=sys.stderr)
            if args.json:
                print(json.dumps({"file": str(args.file), "verdict": "refused", "exit_code": 1, **error.as_json()},
                                 indent=2))
            return 1
    print(json.dumps(found, indent=2) if args.json else
          "\n".join(f"{name:<22}{value}" for name, value in found.items() if name != "tensors"))
    return 0


@dataclass(frozen=True)
class _Asked:
    """The file as it is to be, by what was given: pins, a publisher's key and signature, and the
    original's tensors."""

    header_pin: bytes | None
    pin: bytes | None
    publisher: bytes | None
    signature: bytes | None
    original: dict[str, bytes] | None


def _asked(args: argparse.Namespace) -> _Asked:
    """PinError for pins, keys and signatures that are none or alone; ModelError for an original
    that cannot be read; ModelKeyError where a sealed file cannot be compared with it for want of a
    key."""
    if args.bundle is not None:
        if args.publisher is None or args.signature is not None:
            raise PinError("--bundle needs --publisher, and stands in place of --signature", code="model-signature",
                           hint="give the key that signed the bundle: --publisher p256:HEX, as printed by: appliance "
                           "key public FILE.pem")
    elif (args.signature is None) != (args.publisher is None):
        given, lacking = ("--signature", "--publisher") if args.publisher is None else ("--publisher", "--signature")
        raise PinError(f"{given} needs {lacking}", code="model-signature", hint=f"give {lacking} ed25519:HEX")
    if args.against is not None and args.key is None and inspection.is_sealed(args.file):
        raise ModelKeyError("the tensors of a sealed model cannot be compared without its key",
                            hint="give it: --key FILE")
    return _Asked(*_pins(args), None if args.publisher is None or args.bundle is not None
                  else _tagged(args.publisher, 32),
                  None if args.signature is None else _tagged(args.signature, signature.NBYTES),
                  None if args.against is None else _digests(args.against, "hashing the original").tensors)


def _verified(args: argparse.Namespace, asked: _Asked, key: Secret | None) -> dict[str, Any]:
    """Print the findings, for people and scripts. Errors are refusals, or the disk's."""
    header_pin, pin = asked.header_pin, asked.pin
    if _is_sealed(args.file, args.key, header_pin):
        found = _verify_sealed(args.file, key, header_pin, pin)
        sha256, header, tensors = found.sha256, found.header_sha256, found.tensors
        signed_over: Sequence[bytes] = (sha256,)
        report: dict[str, Any] = {
            "file": str(args.file), "verdict": "authentic" if found.authenticated else "well formed, not authenticated",
            "sha256": sha256.hex(), "sealed_header_sha256": header.hex(), "size": found.size, "tiles": found.tiles}
    else:
        plain = _digests(args.file, "hashing")
        if pin is not None:
            pins.check(args.file, pin, plain.sha256)
        sha256, header, tensors = plain.sha256, None, plain.tensors
        signed_over = plain.shards or (sha256,)
        report = {"file": str(args.file), "verdict": "not sealed", "sha256": sha256.hex(), "size": plain.size}
    if asked.original is not None:
        digests.compare(args.file, tensors, args.against, asked.original)
        report["equal_tensors"] = len(tensors)
    report["tensors"] = {name: digest.hex() for name, digest in tensors.items()}
    if asked.publisher is not None and asked.signature is not None:
        signature.check(asked.publisher, asked.signature, sha256, header,
                        claimed=header is not None and args.key is None and header_pin is None)
        report["publisher"] = args.publisher
    if args.bundle is not None:
        if header is not None and args.key is None and header_pin is None:
            raise PinError("a sealed file's header alone does not prove its plaintext's digest", code="model-signature",
                           hint="give its key or its header's pin: --key FILE, or --header-sha256 HEX")
        data = inputfile.read(args.bundle, bundle.MAX_BYTES + 1)
        signed, *_ = [bundle.check(data, args.publisher, each, root_sha256=args.publisher_root) for each in signed_over]
        report |= {"publisher": args.publisher, "publisher_names": list(signed.identities), "resource": signed.resource}
    return report


def _is_sealed(file: Path, key: Path | None, header_pin: bytes | None = None) -> bool:
    """Return whether the file is sealed. FormatError where it is not and a key or a header's pin
    was given: a plain file in the place of a sealed one must not pass for it."""
    if inspection.is_sealed(file):
        return True
    if key is not None or header_pin is not None:
        raise FormatError(f"{file} is not sealed; a {'key' if key is not None else 'pin of a sealed header'} was given",
                          hint="give the sealed file, or leave out --key and --header-sha256")
    return False


def _digests(file: Path, title: str) -> digests.Digests:
    with bar(title) as progress:
        return digests.of(file, progress)


def _key_in(file: Path | None) -> AbstractContextManager[Secret | None]:
    """Return the key in a file, where one was named. Raises ModelKeyError as `FileKey` does."""
    return contextlib.nullcontext() if file is None else providers.FileKey(file).key()


def _verify_sealed(file: Path, key: Secret | None, header_pin: bytes | None, pin: bytes | None) -> restore.Verified:
    with bar("verifying") as progress:
        return restore.verify(file, None if key is None else key.data, header_sha256=header_pin, sha256=pin,
                              progress=progress)


def _sign(args: argparse.Namespace) -> int:
    """Sign what was verified: a sealed file needs its key, since its header's words alone prove
    nothing."""
    if _is_sealed(args.file, args.key):
        if args.key is None:
            raise ModelKeyError("a sealed model is verified before it is signed", hint="give its key: --key FILE")
        with _key_in(args.key) as secret:
            found = _verify_sealed(args.file, secret, None, None)
        sha256, header = found.sha256, found.header_sha256
    else:
        sha256, header = _digests(args.file, "hashing").sha256, None
    with providers.FileKey(args.signing_key).key() as key:
        public, signed = desk.sign_model(key.data, sha256, header)
    if args.json:
        print(json.dumps({"sha256": sha256.hex(), "sealed_header_sha256": None if header is None else header.hex(),
                          "public_key": f"ed25519:{public.hex()}", "signature": f"ed25519:{signed.hex()}"}, indent=2))
    else:
        print(f'publisher {{\n  public_key = "ed25519:{public.hex()}"\n  signature  = "ed25519:{signed.hex()}"\n}}')
    return 0


def pin_sealed(args: argparse.Namespace) -> int:
    """`model pin` of a sealed file: its own words, to be compared with what `seal` printed."""
    header, _ = reader.structure(args.file)
    print(json.dumps({"file": args.file.name, "sha256": header.sha256.hex(),
                      "sealed_header_sha256": header.digest.hex()}, indent=2) if args.json else
          sealed_block(args.file, header.sha256, header.digest, None))
    return 0


def _pins(args: argparse.Namespace) -> tuple[bytes | None, bytes | None]:
    """Pins of header and plaintext, as given."""
    return (None if args.header_sha256 is None else digests.parse(args.header_sha256),
            None if args.sha256 is None else digests.parse(args.sha256))


def _tagged(text: str, nbytes: int) -> bytes:
    """Return the bytes of `ed25519:HEX`. Raises PinError for anything else."""
    digits = text.removeprefix("ed25519:")
    if digits == text or len(digits) != 2 * nbytes or set(digits) - set("0123456789abcdef"):
        raise PinError(f"{text[:160]!r} is not ed25519: and {2 * nbytes} digits 0-9 a-f", code="model-signature",
                       hint="a key in this form is printed by: appliance key public FILE.pem")
    return bytes.fromhex(digits)


_DECLARED: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "key": ("make a key file", _declare_key),
    "seal": ("encrypt a GGUF file into a sealed one, and print the pins for a policy", _declare_seal),
    "unseal": ("give back the GGUF file, byte for byte", _declare_unseal),
    "verify": ("check a sealed file, wholly with its key, and a publisher's signature", _declare_verify),
    "sign": ("sign a model's pins as its publisher", _declare_sign),
}

ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "key": _key, "seal": _seal, "unseal": _unseal, "verify": _verify, "sign": _sign}
