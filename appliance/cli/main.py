"""`appliance`: dispatch to one module per verb, imported only when its verb is used.

All verbs share exit codes: 0 success, 1 the thing examined has findings or is refused, 2 the
command cannot run (bad usage, missing file). 128 + N means ended by signal N (130: Ctrl-C, 143:
SIGTERM). A verb documents any further code in its own help.

With --json, what a verb cannot do is an object too: `exit_code`, `code`, `reason`, `hint`, on
standard output; of verbs that write JSON lines on standard error, a line there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from appliance import __version__, hostclock, packaged
from appliance.cli import signals
from appliance.errors import ApplianceError, no_memory, shortage

# verb -> one-line help; the verb `x-y` lives in `appliance.cli.x_y` with `add_arguments` and `run`.
VERBS: dict[str, str] = {
    "init": "make a first deployment: a commented policy, its keys, and the next commands",
    "doctor": "say what this machine can do and lacks, and what a policy lacks on it",
    "check": "check a deployment policy, to the last field",
    "explain": "say what a field of the policy or the code of an error means, and what to do",
    "completions": "print completions for bash, zsh or fish, or write manual pages",
    "schema": "print the policy reference as Markdown or JSON Schema",
    "digest": "print the digest of a policy",
    "plan": "say what a change of policy, tenants or image does, who refuses, and in which order to go",
    "approve": "sign a policy's digest as one of its approvers, or show who has",
    "key": "make an API key, or print a public key as policies name it",
    "tenants": "sign a list of tenants as a policy's authority, check one, or have a running appliance take one",
    "machines": "make a list of machines out of evidence, sign it as a policy's authority, or show it",
    "model": "inspect a model file, or print the pins for a policy",
    "tokenize": "turn text into token ids with a model's tokenizer",
    "redact": "try a policy's redaction, or detectors of personal data and secrets, on a text",
    "infer": "run one prompt through a model that a policy names",
    "plan-memory": "show how much memory a policy's models take, and which parts are streamed",
    "kernels": "compile the kernels ahead of time, or list them",
    "image": "build a measured VM image from a policy, or boot one",
    "evidence": "tell whether raw hardware evidence is genuine, and what it claims",
    "collateral": "fetch what evidence needs to be verified, from AMD and Intel or a mirror",
    "verify": "tell whether an appliance is what a policy and measurements say, in hardware",
    "connect": "open a local port behind which is nothing but a verified appliance",
    "accept": "try each attack of a host on a machine, and write a bundle that anybody may judge",
    "fleet": "say which machines of a fleet fail, why and when, by stored evidence and a what-if",
    "drill": "rehearse an incident, such as a leaked key, and see that what should refuse does",
    "watch": "verify appliances on a schedule, and export verdicts and their age as metrics",
    "top": "show the load of a running appliance in a terminal",
    "console": "show a running appliance on one local page, for operators and auditors",
    "models": "have a running appliance load and unload models of its policy",
    "audit": "judge an audit log offline, and take proofs out of it",
    "receipt": "verify an answer's receipt offline, or compute the answer again",
    "state": "check a state disk, and print its audit log",
    "serve": "boot by a policy and serve the API",
}

EVENTS = ("connect", "serve")  # their --json is lines on standard error

class _UsageError(ApplianceError):
    code = "usage"

    def __init__(self, parser: argparse.ArgumentParser, summary: str) -> None:
        super().__init__(summary, hint=f"{parser.prog} --help")
        self.parser = parser


class _VerbParser(argparse.ArgumentParser):
    def __init__(self, **named: Any) -> None:
        super().__init__(allow_abbrev=False, **named)  # `--js` would be --json, but not for errors

    def error(self, message: str) -> NoReturn:
        raise _UsageError(self, message)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            print(message, end="", flush=True)  # an error here is reported: argparse would be silent about it
        else:
            super()._print_message(message, file)


def parser_of(verb: str | None) -> argparse.ArgumentParser:
    """Make the parser of all verbs, with the arguments of `verb` alone: the others are not
    imported."""
    parser = _VerbParser(
        prog="appliance", description="LLM inference that its operator cannot read and anyone can verify.",
        epilog="exit codes: 0 success, 1 findings or refused, 2 cannot run; further ones in each verb's --help",
    )
    parser.add_argument("--version", action="version", version=f"appliance {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        sub = verbs.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == verb:
            _module(name).add_arguments(sub)
            sub.set_defaults(parser=sub)
    return parser


def _verb(words: Sequence[str]) -> str | None:
    return next((word for word in words if word in VERBS), None)


def _name(verb: str) -> str:
    return f"appliance.cli.{verb.replace('-', '_')}"


def _module(verb: str) -> Any:
    return importlib.import_module(_name(verb))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code; an expected error is printed without a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    hostclock.install()
    try:
        return _run(words)
    except KeyboardInterrupt:  # also while the verb's modules are imported
        return 130
    except SystemError:  # CPython's own, out of a function in which there was no memory to raise anything
        if not _scarce():
            raise
        return _failed(no_memory(), argparse.Namespace(json="--json" in words, verb=_verb(words)))
    finally:
        _wipe_stack()


def _wipe_stack() -> None:
    """Wipe the stack from its beginning, if the verb had secrets: the verb's own wiping may have
    begun deeper than they lie."""
    if (stacks := sys.modules.get("appliance.secure.stacks")) is not None:
        stacks.wipe()


def _run(words: list[str]) -> int:
    if not _streams():
        return _failed(ApplianceError("standard output is closed", code="stdout-closed",
                                      hint="to throw it away, write >/dev/null"))
    verb = _verb(words)
    try:
        args, unknown = parser_of(verb).parse_known_args(words)
        if unknown:
            raise _UsageError(args.parser, f"unrecognized arguments: {' '.join(unknown)}")
    except _UsageError as error:
        if "--json" in words and _tell(error, verb):
            raise SystemExit(2) from None
        argparse.ArgumentParser.error(error.parser, error.summary)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # where no memory is left, imports fail by errors of any kind, and by Rust's panics
        told = argparse.Namespace(json="--json" in words, verb=verb)
        if isinstance(error, MemoryError) or _scarce():
            return _failed(no_memory(), told)
        if isinstance(error, OSError):  # of --help and --version as well
            return _lost(error, told)
        if isinstance(error, ApplianceError):  # of a file that is read on import
            return _failed(error, told)
        if (incomplete := _incomplete(error)) is not None:
            return _failed(incomplete, told)
        raise
    module = _module(args.verb)
    try:
        with signals.politely():
            code = int(module.run(args))
            sys.stdout.flush()
        return code
    except ApplianceError as error:
        return _failed(error, args)
    except (MemoryError, RuntimeError) as error:  # by a traceback it would end with 1, which is an answer
        if (lacking := shortage(error)) is None:
            raise
        return _failed(lacking, args)
    except (ImportError, SyntaxError) as error:  # of a module that the verb imports late
        if (incomplete := _incomplete(error)) is None:
            raise
        return _failed(incomplete, args)
    except OSError as error:
        return _lost(error, args)


def _lost(error: OSError, args: argparse.Namespace) -> int:
    """Report output that is lost, by a full disk or a reader that has gone, as `| head` does. Return
    2, as 1 would be an answer."""
    if not isinstance(error, BrokenPipeError):
        _failed(shortage(error) or ApplianceError(str(error), code="system"), args)
    _drop(sys.stdout)
    return 2


def _scarce() -> bool:
    """Return whether there is less memory than what a verb imports may take."""
    try:
        bytearray(64 << 20)
    except MemoryError:
        return True
    return False


def _incomplete(error: BaseException) -> ApplianceError | None:
    """Return the message about an installation that lacks a package or a part of this one; None for
    any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name.startswith("appliance"):
        return packaged.broken(error)
    package = error.name.partition(".")[0]
    return ApplianceError(f"the package {package} is not installed", code="package-absent",
                          hint="install the checkout with its packages: pip install './CHECKOUT' for a client, "
                               "'./CHECKOUT[server]' to serve, and to make or inspect models and images")


def _streams() -> bool:
    """Make the standard streams fit for use; whether there is a standard output.

    No file or socket that is opened later takes the number of a closed one. A character that a
    stream's encoding does not have is written as an escape. Python would end with a traceback and
    the exit code for findings.
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
    """Drop the text that is still to be written to a stream, so that the interpreter does not try
    again as it ends."""
    with contextlib.suppress(OSError):  # not a file: a text in memory, say
        number = stream.fileno()
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        except PermissionError:  # in the sandbox
            os.dup2(os.pipe()[1], number)


def _failed(error: ApplianceError, args: argparse.Namespace | None = None) -> int:
    if args is None or not getattr(args, "json", False) or not _tell(error, args.verb, args):
        _write(f"error[{error.code}]: {error}\n  more: appliance explain {error.code}", sys.stderr)
    return 2


def _tell(error: ApplianceError, verb: str | None, args: argparse.Namespace | None = None) -> bool:
    """Write the error as JSON; whether no other words belong beside it."""
    if verb in EVENTS:
        _write(json.dumps({"event": "error", "exit_code": 2, **error.as_json()}), sys.stderr)
        return True
    own = None if verb is None else getattr(sys.modules.get(_name(verb)), "failure", None)
    _write(json.dumps({"exit_code": 2, **error.as_json()} if own is None else own(error, args), indent=2), sys.stdout)
    return False


def _write(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except OSError:
        _drop(stream)


if __name__ == "__main__":
    sys.exit(main())
