"""`appliance init DIR`: a first deployment: a commented policy, its keys, and the next commands."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from appliance import platforms
from appliance.cli import numbers
from appliance.cli.bars import bars
from appliance.errors import PolicyError
from appliance.starter import choices, folder, steps
from appliance.starter.choices import KEYS, PRIVACY, Choices
from appliance.starter.folder import Made

_DEMO = Path("build/models/SmolLM2-135M-Instruct.Q4_1.gguf")  # where `make demo` puts it


def _address(text: str) -> str:
    host, port = numbers.address(1, choices.BROKER)(text)
    return f"{host}:{port}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder to make")
    parser.add_argument("--platform", choices=platforms.NAMES,
                        help="where it will run: simulated for a first look, tpm for a virtual machine (default: asked "
                        "on a terminal, else simulated)")
    parser.add_argument("--model", metavar="FILE.gguf", type=Path,
                        help="the model's file; `demo`: the small model of `make demo` (default: asked, else demo)")
    parser.add_argument("--key", choices=("file", "tpm", "broker", "none"),
                        help="who keeps the key of the encrypted model; none: the model is not encrypted (default: "
                        "the first that the platform allows)")
    parser.add_argument("--privacy", choices=tuple(PRIVACY), help="what the network and the operator may learn: "
                        + "; ".join(f"{name}: {what}" for name, what in PRIVACY.items()) + " (default: asked, else "
                        "guarded)")
    parser.add_argument("--tenant", metavar="NAME[=ROLE]", action="append", default=[],
                        help=f"who gets an API key, and its role: {', '.join(choices.ROLES)}; may be repeated "
                        "(default: first, and operations=admin)")
    parser.add_argument("--name", help="the name of the deployment (default: that of DIR)")
    parser.add_argument("--broker", metavar="HOST:PORT", type=_address, default=choices.BROKER,
                        help="where the appliance finds the key broker (default: %(default)s, which is this machine "
                        "for a guest of QEMU)")
    parser.add_argument("--port", metavar="PORT", type=numbers.whole(1, 65535), default=8080,
                        help="the loopback port at which clients ask (default: %(default)s)")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and take the defaults")
    parser.add_argument("--json", action="store_true", help="ask nothing, and print what was made as JSON")
    parser.epilog = ("The policy is valid and boots; secrets are in DIR/keys.\n"
                     "exit codes: 0 made, 2 not in form, or cannot run")


def run(args: argparse.Namespace) -> int:
    """Make the folder, and print the next commands."""
    chosen = _chosen(args)
    with bars() as progress:
        made = folder.make(chosen, args.folder, progress)
    following = steps.steps(chosen, str(args.folder), made.model)
    if args.json:
        print(json.dumps({"folder": str(made.folder), "policy": str(made.folder / folder.POLICY),
                          "files": made.files, "next": [each.command for each in following]}, indent=2))
        return 0
    _tell(made)
    for number, each in enumerate(following, 1):
        print(f"\n{number}. {each.why}{' Go on in another shell.' if each.stays else ''}\n   {each.command}")
    return 0


def _tell(made: Made) -> None:
    """Print what was made."""
    for name, what in made.files.items():
        print(f"  {made.folder / name}: {what}")
    for diagnostic in made.checked.diagnostics:
        print(f"\n{diagnostic}")
    print(f"\n{made.folder / folder.POLICY}: valid, and this version boots it. Next:")


def _chosen(args: argparse.Namespace) -> Choices:
    """Return the choices by arguments, a person's answers and defaults."""
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not args.yes and not args.json
    platform = args.platform or _answer(asks, "platform", ("simulated", "tpm", "sev-snp", "tdx"))
    model = args.model or Path(_answer(asks, "model (a GGUF file, or demo)", ("demo",), closed=False))
    key = args.key or _answer(asks, "who keeps the model's key", KEYS[platform])
    privacy = args.privacy or _answer(asks, "privacy", ("guarded", "open", "strict"))
    tenants = args.tenant or _answer(asks, "tenants", ("first operations=admin",), closed=False).split()
    return Choices(
        name=args.name or args.folder.absolute().name, platform=platform, model=_model(model), key=key,
        privacy=privacy, tenants=tuple(choices.tenant(each) for each in tenants), broker=args.broker, port=args.port)


def _answer(asks: bool, what: str, options: tuple[str, ...], *, closed: bool = True) -> str:
    """Return a person's answer, or the first option."""
    while asks:
        others = f", or {', '.join(options[1:])}" if options[1:] else ""
        answer = input(f"{what} [{options[0]}{others}]: ").strip() or options[0]
        if answer in options or not closed:
            return answer
        print(f"{answer} is not one of: {', '.join(options)}")
    return options[0]


def _model(named: Path) -> Path:
    """Return the model's file. Raises PolicyError if it is not there."""
    demo = str(named) == "demo" and not named.exists()
    path = _DEMO if demo else named
    if not path.is_file():
        raise PolicyError(f"model: {path} is not there", code="model-absent",
                          hint="fetch the demo model, in the root of the checkout: make demo" if demo else
                          "name a GGUF file: --model FILE.gguf; or take the demo model: --model demo")
    return path
