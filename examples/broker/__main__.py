"""`python -m examples.broker CONFIG.toml`: read the rules, then serve until interrupted.

SIGHUP reads them again.
`check CONFIG.toml` only reads them. `wrap` and `overlap` have a help of their own.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from appliance.attestation import keyfile
from appliance.errors import ApplianceError
from appliance.keys.providers import FileKey
from examples.broker import overlap
from examples.broker.config import read, wrappers
from examples.broker.keepers import wrapping
from examples.broker.rules import ConfigError
from examples.broker.server import Server


def main(words: Sequence[str]) -> int:
    """Exit 2 for a configuration that cannot be used."""
    verbs = {"check": _check, "wrap": _wrap, "overlap": _overlap}
    try:
        return verbs[words[0]](words[1:]) if words and words[0] in verbs else _serve(words)
    except (ApplianceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser(verb: str, text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m examples.broker{verb}", description=text)
    parser.add_argument("config", metavar="CONFIG.toml", type=Path)
    return parser


def _serve(words: Sequence[str]) -> int:
    config = _parser("", __doc__ or "").parse_args(words).config
    rules = read(config)
    server = Server(rules)
    print(f"{len(rules.rules)} rules, listening at {server.url}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(
        target=server.reload, args=(lambda: read(config),), daemon=True).start())
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()
    return 0


def _check(words: Sequence[str]) -> int:
    """Print the rules, and the digest that brokers behind one address should share."""
    rules = read(_parser(" check", "Read the rules, as a start or SIGHUP would, and end.").parse_args(words).config)
    for rule in rules.rules:
        over = "" if rule.until is None else f", ended at {rule.until}" if rule.ended(rules.now()) else (
            f", until {rule.until}")
        print(f"{rule.resource} version {rule.version}: policy {rule.policy.digest.hex()[:16]}…, "
              f"{', '.join(sorted(rule.platforms))}{over}")
    print(f"rules sha256:{rules.sha256.hex()}")
    return 0


def _wrap(words: Sequence[str]) -> int:
    parser = _parser(" wrap", "Wrap a model's key by a key that the configuration names.")
    parser.add_argument("--by", metavar="NAME", required=True, help="of a table [wrapping.NAME]")
    parser.add_argument("--resource", metavar="NAME", required=True, help="of the rules that may release it: it opens "
                        "for no other")
    parser.add_argument("--key", metavar="FILE", type=Path, required=True, help="the model's key, mode 0600")
    parser.add_argument("--key-version", metavar="N", type=int, required=True)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True)
    args = parser.parse_args(words)
    known = wrappers(args.config)
    if args.by not in known:
        raise ConfigError(f"--by is {args.by!r}; there are: {', '.join(sorted(known)) or 'none'}",
                          hint=f"add a table [wrapping.{args.by}] to {args.config}")
    with FileKey(args.key, args.key_version, bare=True).key() as key:
        keyfile.write_whole(args.output, wrapping.wrap(key, args.resource, args.key_version, known[args.by]))
    print(f"{args.output}: wrapped by {args.by} for {args.resource}; in its rule: "
          f"key_file = \"{args.output.name}\", wrapped_by = \"{args.by}\"")
    return 0


def _overlap(words: Sequence[str]) -> int:
    parser = _parser(" overlap", "Accept another policy or image beside those of today, which end at a time.")
    parser.add_argument("--until", metavar="TIME", type=datetime.fromisoformat, required=True,
                        help="when the rules of today end, as 2026-12-24T18:00:00Z")
    parser.add_argument("--resource", metavar="NAME", help="only of rules of this name")
    for name in ("policy", "measurements"):
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help="of the rules that follow")
    args = parser.parse_args(words)
    print(overlap.add(args.config, args.until, args.resource, args.policy, args.measurements))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
