"""`appliance infer FILE`: one prompt through a model that a policy names, under the policy's
limits. Nothing is served.

The model's pin, its sampling bounds and the limits on prompt and answer hold as they do in the
service.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from appliance.boot.oneshot import Answer, Ask, Session, open_session
from appliance.cli import numbers
from appliance.codec import strict
from appliance.constraint.schema import check_schema
from appliance.errors import ConstraintError, EngineError
from appliance.kernels.runtime import quota
from appliance.policy import InvalidPolicyError
from appliance.policy.schema.sampling import BY_NAME


def _text(value: str) -> str:
    """Return a text of the command line. Python reads bytes that are not UTF-8 there as halves of
    characters."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"no UTF-8 at byte {len(os.fsencode(value[:error.start]))}") from None
    return value


def _setting(value: str) -> tuple[str, Any]:
    """Return a parameter's name and its value."""
    name, _, text = value.partition("=")
    if name == "samplers":
        return name, text.split(";")
    if name == "dry_sequence_breakers":
        return name, _texts(text)
    if name == "negative_prompt":
        return name, _text(text)
    if name not in BY_NAME:
        raise argparse.ArgumentTypeError(f"{name!r}: expected samplers, dry_sequence_breakers, negative_prompt, or one "
                                         f"of {', '.join(BY_NAME)}")
    row = BY_NAME[name]
    return name, numbers.whole(int(row.low), int(row.high))(text) if row.whole else numbers.decimal(
        row.low, row.high)(text)


def _texts(text: str) -> list[str]:
    """Return a list of texts as JSON has it."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise argparse.ArgumentTypeError(f'{text!r}: expected a list of texts as JSON, such as ["\\n", ":"]')
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy")
    parser.add_argument("--model", metavar="NAME", help="the model's name in the policy (default: its only model)")
    parser.add_argument("--prompt", metavar="TEXT", type=_text, required=True, help="the prompt")
    parser.add_argument("--raw", action="store_true",
                        help="no chat template: continue the prompt; names of control tokens are read as such")
    parser.add_argument("--max-tokens", metavar="N", type=numbers.whole(1, 1 << 31),
                        help="most tokens of the answer (default: the policy's)")
    parser.add_argument("--temperature", metavar="T", type=numbers.decimal(0, 100),
                        help="0 is greedy (default: the policy's)")
    parser.add_argument("--seed", metavar="S", type=numbers.whole(0, (1 << 64) - 1),
                        help="the same seed gives the same answer (default: random)")
    parser.add_argument("--choice", metavar="J", type=numbers.whole(0, 127), default=0,
                        help="the answer of this number where a request has several (n): it has a seed of its own, "
                             "made from --seed (default: 0)")
    around = parser.add_mutually_exclusive_group()
    around.add_argument("--suffix", metavar="TEXT", type=_text,
                        help="with --raw: the text that follows the answer, by the model's own tokens for that")
    around.add_argument("--begun", metavar="TEXT", type=_text,
                        help="without --raw: the text that the answer has already, and goes on from")
    parser.add_argument("--set", metavar="NAME=VALUE", type=_setting, action="append", default=[],
                        help="a parameter of sampling by its name in the API, such as top_p=0.9 or "
                             "samplers=top_k;temperature; may be given more than once (default: the policy's)")
    parser.add_argument("--schema", metavar="FILE", type=Path,
                        help="a JSON Schema that the answer meets; refused where that is not enforced to the letter")
    parser.add_argument("--models", metavar="DIR", type=Path, action="append", default=[],
                        help="a folder with model files, besides the policy's own and build/models; may be given more "
                             "than once")
    parser.add_argument("--cache", metavar="FILE", type=Path,
                        help="read keys and values of the prompt's beginning from this file if it has them, and "
                             "write those of prompt and answer to it, sealed; the file is made if it does not exist")
    parser.add_argument("--cache-key", metavar="FILE", type=Path,
                        help="the key that --cache is sealed under, as `model key` writes one; anybody with both files "
                             "can read the prompts (default: FILE.key beside the cache, made if neither exists)")
    parser.add_argument("--threads", metavar="N", type=numbers.whole(1, quota.MOST),
                        help="threads (default: what affinity and quota allow)")
    parser.add_argument("--json", action="store_true",
                        help="print JSON: token ids, text, how tokens were chosen, timings")
    parser.epilog = "exit codes: 0 answered, 1 the policy has findings, 2 refused or cannot run"


def run(args: argparse.Namespace) -> int:
    """Run one prompt; exit code 0, 1 for a policy with findings, or 2 by the error that the
    dispatcher prints."""
    if (args.suffix is not None and not args.raw) or (args.begun is not None and args.raw):
        raise EngineError("--suffix is for --raw prompts, --begun for the others")
    if args.cache_key is not None and args.cache is None:
        raise EngineError("--cache-key needs --cache: it is that file's key")
    ask = Ask(args.prompt, args.raw, args.max_tokens, args.temperature, args.seed, dict(args.set), _schema(args.schema),
              args.choice, args.suffix, args.begun)
    try:
        session = _open(args)
    except InvalidPolicyError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        if args.json:
            print(json.dumps({"exit_code": 1, **error.as_json()}))
        return 1
    with session:
        if args.cache is not None:
            session.keep_in(args.cache, args.cache_key)
        for warning in session.warnings(ask):
            print(f"warning: {warning}", file=sys.stderr)
        try:
            answer = session.run(ask, on_text=_quiet if args.json else _write)
        except ConstraintError as error:
            raise _at(args.schema, error) from None
    if args.json:
        print(json.dumps(_as_json(answer)))
    else:
        print()
    return 0


def _schema(path: Path | None) -> Any:
    """Return the schema in a file, checked before a model is loaded. ConstraintError names the file
    and the keyword."""
    if path is None:
        return None
    try:
        found = strict.json_value(path.read_bytes())
        if not isinstance(found, dict | bool):
            raise ConstraintError("it is neither an object nor true or false", hint="a JSON Schema")
        check_schema(found)
    except ConstraintError as error:
        raise _at(path, error) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConstraintError(f"{path}: is not read: {why}", hint="a file with a JSON Schema") from None
    return found


def _at(path: Path, error: ConstraintError) -> ConstraintError:
    """Return the same error, with file and place."""
    place = f"{path}: {error.path}" if error.path else str(path)
    return ConstraintError(f"{place}: {error.summary}", path=error.path, hint=error.hint, code=error.code)


def _open(args: argparse.Namespace) -> Session:
    """Load the model behind a progress bar on standard error."""
    bars: dict[str, Any] = {}

    def progress(step: str, done: int, total: int) -> None:
        if step not in bars:
            unit = {"unit": "B", "unit_scale": True} if step == "loading" else {}
            bars[step] = tqdm(total=total, desc=step, file=sys.stderr, leave=False, disable=None, **unit)
        bars[step].update(done - bars[step].n)
        if done >= total:
            bars[step].close()
    try:
        return open_session(args.file, args.model, folders=tuple(args.models), threads=args.threads,
                            chats=not args.raw, progress=progress)
    finally:
        for bar in bars.values():
            bar.close()


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _quiet(text: str) -> None:
    del text


def _as_json(answer: Answer) -> dict[str, Any]:
    return {
        "model": answer.model, "prompt_tokens": list(answer.prompt_tokens), "tokens": list(answer.tokens),
        "text": answer.text, "warnings": list(answer.warnings), "finish_reason": answer.finish_reason,
        "seed": answer.sampling.seed, "sampling": answer.sampling.as_json(),
        **({"negative_tokens": list(answer.negative_tokens)} if answer.negative_tokens else {}),
        **({"masks": [mask and base64.b64encode(mask).decode() for mask in answer.masks]} if answer.masks else {}),
        **({} if answer.rope is None else {"rope": {
            "factor": answer.rope.factor, "original_context": answer.rope.original}}),
        **({} if answer.cached_tokens is None else {"cached_tokens": answer.cached_tokens}),
        "timings": {"load_seconds": answer.load_seconds, "prompt_seconds": answer.prompt_seconds,
                    "seconds_per_token": answer.token_seconds},
    }
