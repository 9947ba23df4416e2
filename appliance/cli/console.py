"""`appliance console URL`: one local page on a running appliance, from verified connections."""

from __future__ import annotations

import argparse
import threading
import time

from appliance.cli import administering, numbers, verifying
from appliance.cli.top import verified
from appliance.client.proxy import check_address
from appliance.client.target import is_loopback
from appliance.errors import ApplianceError
from appliance.monitoring import console
from appliance.monitoring.asking import Asker, Reading
from appliance.monitoring.listening import Listener, Page
from appliance.monitoring.load import Load

HTML = "text/html; charset=utf-8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help=administering.URL)
    verifying.add_reference(parser)
    administering.add_key(parser, "auditor or admin")
    verifying.add_accept(parser)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", type=numbers.address(0, "127.0.0.1:8081"),
                        default=("127.0.0.1", 0),
                        help="the loopback address and port of the page (default: 127.0.0.1 and a free port)")
    parser.add_argument("--every", metavar="SECONDS", type=numbers.decimal(2, 3600), default=15.0,
                        help="time after which the page is read anew (default: %(default).0f)")
    parser.add_argument("--json", action="store_true", help="report an error as JSON; the page stays a page")
    parser.epilog = ("Every user of this machine can see the page. It changes nothing.\n"
                     + administering.EXIT_CODES)


class _Pages:
    """The page, made anew for each request, but not more often than once a second."""

    def __init__(self, asker: Asker, every: float) -> None:
        self._asker, self._every, self._policy = asker, every, asker.policy
        self._lock = threading.Lock()
        self._before: Reading | None = None
        self._last: Reading | None = None

    def __call__(self) -> Page:
        with self._lock:
            return Page(self._body(), HTML, console.HEADERS)

    def _body(self) -> bytes:
        if self._last is None or time.monotonic() - self._last.at >= 1:
            try:
                self._before, self._last = self._last, self._asker.read(log=True)
            except ApplianceError as error:
                self._before = self._last = None
                return console.failure(str(error), seconds=self._every)
        return console.page(Load(self._last, self._before), self._policy, seconds=self._every)


def run(args: argparse.Namespace) -> int:
    """Verify; then show the page until a signal comes."""
    check_address(args.listen[0])
    asker = Asker(verifying.verifier(args), args.url, administering.api_key(args), verifying.accepted(args))
    if (code := verified(asker, as_json=args.json)) is not None:
        return code
    sheet = Page(console.style(), "text/css; charset=utf-8")
    listener = Listener(args.listen, {"/": _Pages(asker, args.every), console.STYLE: lambda: sheet}, is_loopback)
    try:
        print(f"ready: {listener.url}", flush=True)
        threading.Event().wait()
    finally:
        listener.close()
    return 0
