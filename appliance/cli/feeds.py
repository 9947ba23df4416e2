"""Arguments that commands share which read a signed feed of bulletins."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance.attestation import keyfile
from appliance.errors import PolicyError, about
from appliance.policy import inputfile
from appliance.policy.bulletins import table
from appliance.signed import feed


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the feed and the key of its publisher."""
    parser.add_argument("--feed", metavar="FILE", type=Path,
                        help="a signed feed of bulletins, in the place of the table that this version has")
    parser.add_argument("--feed-key", metavar="KEY", action="append", default=[],
                        help="the feed's publisher, whom you know from elsewhere: ed25519:HEX or a file; may be "
                        "repeated")


def use(args: argparse.Namespace) -> None:
    """Take the feed's bulletins, if there is one. Raises PolicyError."""
    if args.feed is None:
        return
    if not args.feed_key:
        raise PolicyError("--feed is given, and no key of its publisher", code="feed-signature",
                          hint="--feed-key ed25519:HEX, or a file")
    with about(args.feed):
        table.use(feed.parse(read(args.feed), [keyfile.ed25519_public_key(each) for each in args.feed_key]))


def read(path: Path) -> bytes:
    """The bytes of a feed. Raises PolicyError where the file cannot be read."""
    try:
        return inputfile.read(path, feed.MAX_BYTES)
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
