"""The JSON Schema Test Suite against constraints: `python -m tests.support.schema_suite [--json] [--walks N]`.

For each schema of a draft one of two things must hold. Either it is refused with the path of a keyword (or as a whole,
by what it asks for). Or no invalid instance of the suite gets through, whatever the order of its members, and every
random answer is accepted by `jsonschema`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from referencing.exceptions import Unresolvable

from appliance.constraint import spec
from appliance.constraint.compiler import Compiler
from appliance.errors import ConstraintError
from tests.constraint.walks import accepts, compiler, walked, words
from tests.support.fetch_json_schema_tests import TARGET
from tests.support.require import absent

VALIDATORS = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}
DIALECTS = {"draft2020-12": "https://json-schema.org/draft/2020-12/schema",
            "draft7": "http://json-schema.org/draft-07/schema#"}


@dataclass
class Result:
    """The outcomes of the schemas of a draft."""

    schemas: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by the last part of the path
    valid: int = 0  # instances of accepted schemas that are valid
    reached: int = 0  # and that can be answers
    walks: int = 0  # random answers that ended
    wrong: list[str] = field(default_factory=list)


def suite(path: Path = TARGET) -> dict[str, Any]:
    """The files of the suite; skips the test where it is not there."""
    if not path.is_file():
        absent("the JSON Schema Test Suite is missing: make vocabularies")
    return dict(json.loads(path.read_text()))


def cases(draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and case of each schema of a draft, which it names where the suite leaves that to the folder."""
    for path, found in sorted(suite().items()):
        if path.startswith(draft + "/"):
            for case in found:
                schema = case["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    case = {**case, "schema": {"$schema": DIALECTS[draft], **schema}}
                yield f"{path}: {case['description']}", case


def spellings(value: Any, most: int = 24) -> list[str]:
    """Compact texts of a value: objects in several orders, whole numbers as such."""
    return [json.dumps(each, ensure_ascii=False, separators=(",", ":"))
            for each in itertools.islice(_orders(value), most)]


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        yield int(value)
    elif isinstance(value, dict):
        for names in itertools.islice(itertools.permutations(value), 24):
            for parts in itertools.product(*(list(itertools.islice(_orders(value[name]), 4)) for name in names)):
                yield dict(zip(names, parts, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(itertools.islice(_orders(each), 3)) for each in value)))
    else:
        yield value


def judge(draft: str, *, walks: int = 30, made: Compiler | None = None, tokenizer: Any = None) -> Result:
    """Put all schemas of a draft to the proof."""
    result, made, tokenizer = Result(), made or compiler(), tokenizer or words()
    for name, case in cases(draft):
        result.schemas += 1
        schema = case["schema"]
        try:
            constraint = made.compile(spec.JsonSchema(schema))
        except ConstraintError as error:
            result.refused[error.path.rpartition(".")[2] or error.summary] += 1
            continue
        result.accepted += 1
        validator = VALIDATORS[draft](schema, format_checker=VALIDATORS[draft].FORMAT_CHECKER)
        for test in case["tests"]:
            try:
                through = [text for text in spellings(test["data"]) if accepts(constraint, text, tokenizer)]
            except UnicodeEncodeError:
                continue
            if not test["valid"] and through:
                result.wrong.append(f"{name}: {through[0]!r} is invalid: {test['description']}")
            result.valid += test["valid"]
            result.reached += bool(test["valid"] and through)
        rng = random.Random(name)
        for _ in range(walks):
            text = walked(constraint, rng, 300, tokenizer)
            if text is not None:
                result.walks += 1
                try:
                    validator.validate(json.loads(text))
                except (jsonschema.ValidationError, Unresolvable, ValueError) as error:
                    result.wrong.append(f"{name}: answer {text!r}: {str(error)[:120]}")
                    break
    return result


def main() -> int:
    """Print what became of each draft; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", type=int, default=30, help="random answers for each schema")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {draft: judge(draft, walks=args.walks) for draft in VALIDATORS}
    for draft, each in results.items():
        if args.json:
            print(json.dumps({"draft": draft, **vars(each)}))
            continue
        print(f"{draft}: {each.accepted} of {each.schemas} schemas accepted ({each.accepted / each.schemas:.1%}); "
              f"{each.reached} of {each.valid} valid instances can be answers; {each.walks} random answers; "
              f"{len(each.wrong)} wrong")
        print("  refused: " + ", ".join(f"{name} {count}" for name, count in each.refused.most_common()))
        print("\n".join(f"  WRONG {line}" for line in each.wrong))
    return int(any(each.wrong for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())
