"""`python -m examples.witness FOLDER KEY...`: cosign checkpoints of the logs with these keys.

FOLDER keeps the witness's own key and, for each log, the size and root that it cosigned last: it
never cosigns a checkpoint that does not prove to have grown from there. KEY is a log's key in
C2SP's form, as `appliance audit vkey` prints it; a log may have several. Put TLS before it.

Without KEY it makes its own key, prints it and ends: a policy names this key before there is a log.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from appliance.errors import NoteError
from appliance.transparency import reading
from appliance.transparency.note import SIGNS, NoteKey
from examples.witness.server import Server
from examples.witness.witness import BrokenError, Witness


def _log_key(text: str) -> NoteKey:
    """A log's key from the command line."""
    try:
        key = reading.key(text)
    except NoteError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.summary}") from None
    if key.kind != SIGNS:
        raise argparse.ArgumentTypeError(f"{text!r}: a witness's key, not a log's")
    return key


def main() -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.witness", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("keys", metavar="KEY", nargs="*", type=_log_key)
    parser.add_argument("--name", default="witness.example", help="its key's name: the witness's label in policies")
    parser.add_argument("--port", type=int, default=8700)
    args = parser.parse_args()
    try:
        witness = Witness(args.folder, args.name, args.keys)
        print(f"{witness.key.text}\npublic_key = \"ed25519:{witness.key.public.hex()}\"", file=sys.stderr, flush=True)
        if not args.keys:
            return 0
        server = Server(witness, args.port)
    except (OSError, OverflowError, BrokenError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"listening at {server.url}", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
