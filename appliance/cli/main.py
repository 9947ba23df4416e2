"""`appliance`: dispatch to one module per verb, imported only when its verb is used.

Exit codes shared by all verbs: 0 success, 1 the thing examined has findings or is refused, 2 the command
cannot run (bad usage, missing file), 128 + N ended by signal N (130: Ctrl-C, 143: SIGTERM). A verb documents any
further code in its own help.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

from appliance import __version__
from appliance.errors import ApplianceError

# verb -> one-line help; the verb `x-y` lives in `appliance.cli.x_y` with `add_arguments` and `run`.
VERBS: dict[str, str] = {
    "check": "check a deployment policy, to the last field",
    "schema": "print the policy reference as Markdown or JSON Schema",
    "digest": "print the digest of a policy",
    "approve": "sign a policy's digest as one of its approvers, or show who has",
    "key": "make an API key and the SHA-256 that goes into the policy",
    "tenants": "sign a list of tenants as a policy's authority, or check a signed one",
    "model": "inspect a model file, or print the pins for a policy",
    "tokenize": "turn text into token ids with a model's tokenizer",
    "infer": "run one prompt through a model that a policy names",
    "plan-memory": "show what a policy's models take of the memory, and what of them is streamed",
    "kernels": "compile the kernels ahead of time, or list them",
    "image": "build a measured VM image from a policy, or boot one",
    "evidence": "tell whether raw hardware evidence is genuine, and what it claims",
    "verify": "tell whether an appliance is what a policy and measurements say, in hardware",
    "connect": "open a local port behind which is nothing but a verified appliance",
    "state": "check a state disk, and print its audit log",
    "serve": "boot by a policy and serve the API",
}


def _parser(verb: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="appliance", description="LLM inference that its operator cannot read and anyone can verify.",
        epilog="exit codes: 0 success, 1 findings or refused, 2 cannot run",
    )
    parser.add_argument("--version", action="version", version=f"appliance {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        sub = verbs.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == verb:
            importlib.import_module(f"appliance.cli.{name.replace('-', '_')}").add_arguments(sub)
    return parser


@contextlib.contextmanager
def _politely() -> Iterator[None]:
    """SIGTERM and SIGHUP end the verb as Ctrl-C does, so that it wipes and removes what it must. Whoever was told to be
    deaf to one stays so (nohup)."""
    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows lacks one
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; an expected error is printed without a traceback."""
    try:
        with _politely():
            return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # also while the verb's modules are imported
        return 130


def _run(words: list[str]) -> int:
    if not _streams():
        return _failed("stdout-closed", "standard output is closed\n  hint: to throw it away, write >/dev/null")
    verb = next((word for word in words if word in VERBS), None)
    args = _parser(verb).parse_args(words)
    module = importlib.import_module(f"appliance.cli.{args.verb.replace('-', '_')}")
    try:
        code = int(module.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does; 1 would be an answer
        _drop(sys.stdout)
        return 2
    except ApplianceError as error:
        return _failed(error.code, str(error))
    except OSError as error:  # a full disk behind standard output, say: no answer either
        _drop(sys.stdout)
        return _failed("system", str(error))


def _streams() -> bool:
    """Make the standard streams fit for use; whether there is a standard output.

    No file or socket that is opened later takes the number of a closed one, and what a stream's encoding does not have
    is written as an escape, where Python would end with a traceback and the exit code for findings.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - as above
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout is not None


def _drop(stream: TextIO) -> None:
    """What is still to be written to it is lost: the interpreter, as it ends, shall not try again."""
    with contextlib.suppress(io.UnsupportedOperation):  # not a file: a text in memory, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(code: str, text: str) -> int:
    try:
        print(f"error[{code}]: {text}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
