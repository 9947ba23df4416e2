"""A request's object as its type, or one refusal that names all that is wrong with it.

Findings of pydantic get words of ours. A refusal quotes a short value of the caller's own request;
logs have the code, and names of a closed list.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from appliance.api import problems
from appliance.api.messages import unsupported
from appliance.api.problems import RequestError
from appliance.api.wishes import features, unknown
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.parameter import Extra

W = TypeVar("W", bound=BaseModel)
MOST_NAMES, LONGEST_VALUE = 8, 64  # further parameters at fault that are named; characters of a value

# A finding of pydantic -> what is allowed there, with the bounds of its context
_ALLOWED = {
    "string_type": "a text", "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "literal_error": "{expected}", "finite_number": "a number within 1.8e308 of 0",
    "greater_than_equal": "{ge} or more", "less_than_equal": "{le} or less", "less_than": "less than {lt}",
    **dict.fromkeys(("string_too_short", "too_short"), "a length of {min_length} or more"),
    **dict.fromkeys(("string_too_long", "too_long"), "a length of {max_length} or less"),
}
_UNKNOWN = problems.PROBLEMS["unknown_parameter"].message
_KINDS = {str: "a text", int: "an integer", float: "a number", bool: "a boolean", list: "a list", dict: "an object"}


def check(fields: dict[str, Any], kind: type[W], rows: Mapping[str, Extra], ignored: Ignored,
            refused: Sequence[RequestError] = (), *, more: bool = False) -> W:
    """Return an object as a request's type, without the parts that have no effect, which are noted.
    RequestError names all demands that are not met, `refused` ones first. `more`: the caller notes
    further parts, and calls `require` then."""
    faults = [*refused]
    for path, owner in unknown.take(fields, kind, rows, ignored):
        param, row = ".".join(map(str, path)), rows[".".join(step for step in path if isinstance(step, str))]
        faults.append(problems.unsupported(param, row.words()))
        del owner[str(path[-1])]
    wishes = strict(ignored)
    try:
        request = kind.model_validate(fields)
    except ValidationError as error:
        raise together([*faults, *wishes, *_refusals(error)]) from None
    except RequestError as error:
        raise together([*faults, *wishes, error]) from None
    if faults or (wishes and not more):
        raise together([*faults, *wishes])
    return request


def require_together(present: Collection[str]) -> None:
    """Raise RequestError for features of one request that do not go together."""
    row = features.conflict(present)
    if row is not None:
        raise refusal_of(row)


def refusal_of(row: features.Exclusion, *, name: str | None = None, param: str | None = None,
               more: str = "") -> RequestError:
    """Return the refusal of a feature that does not go together with another one. `name`, `param`:
    what it has in this request; `more` follows the words."""
    name = name or row.feature
    return RequestError(row.code, f"{name}: {row.why}{more}", param=param or name)


def require(ignored: Ignored) -> None:
    """Raise RequestError for what has no effect, where the policy wants that refused."""
    if ignored.faults:
        raise together(strict(ignored))


def strict(ignored: Ignored) -> list[RequestError]:
    """Return the refusals of what has no effect, where the policy wants them."""
    return [RequestError("unsupported_parameter" if words else "unknown_parameter",
                         f"{param}: {words or _UNKNOWN}", param=param) for param, words in ignored.faults]


def together(faults: Sequence[RequestError]) -> RequestError:
    """Return the first of several refusals, with the names of the parameters of the others."""
    first, *others = faults
    names = [name for name in dict.fromkeys(each.param for each in others) if name not in (None, first.param)]
    if not names:
        return first
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return RequestError(first.code, f"{first.summary}; also at fault: {', '.join(map(str, names[:MOST_NAMES]))}{more}",
                        param=first.param, retry_after=first.retry_after)


def _refusals(error: ValidationError) -> list[RequestError]:
    """Return refusals for findings of pydantic, the most telling first, then one for each other
    parameter. Further findings on one parameter are about what else it might have been."""
    first, others = refusal(error), dict[str, str]()
    for path in filter(None, map(_path, error.errors(include_url=False))):
        others.setdefault(path.partition(".")[0], path)
    others.pop((first.param or "").partition(".")[0], None)
    return [first, *(RequestError("invalid_value", param=path) for path in others.values())]


def refusal(error: ValidationError) -> RequestError:
    """Return a finding of pydantic as a refusal to the caller, in words of ours: which parameter,
    what is allowed, what was found."""
    errors = error.errors(include_url=False)
    for finding in errors:  # an integer that is not a float is too large for one
        if finding["type"] == "float_type" and type(finding["input"]) is int:
            finding["type"] = "finite_number"
    # Present members come before absent ones: `"content": null` goes with tool calls, which are the
    # reason. Of a union's branches, the furthest comes first: its type fits, then its path is the
    # longest, or leads to a later item.
    first = max(errors, key=lambda finding: (
        not finding["type"].endswith("_type"), finding["type"] != "missing", len(finding["loc"]),
        [step for step in finding["loc"] if isinstance(step, int)]))
    path = _path(first)
    code = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter",
            "unsupported_parameter": "unsupported_parameter"}.get(first["type"], "invalid_value")
    words = unsupported(first)
    if words is not None:
        code, message = "unsupported_parameter", words
    elif code == "unknown_parameter":
        message = _UNKNOWN
    elif code == "missing_required_parameter":
        message = "this parameter is required"
    elif first["type"] in _ALLOWED:
        kinds = [first] if not first["type"].endswith("_type") else [
            finding for finding in errors if _path(finding) == path and finding["type"].endswith("_type")]
        allowed = dict.fromkeys(_ALLOWED[finding["type"]].format_map(finding.get("ctx", {})) for finding in kinds)
        message = f"allowed: {' or '.join(allowed)}; found: {_found(first)}"
    else:
        message = first["msg"].removeprefix("Value error, ")  # of our own validators
    return RequestError(code, message if path is None else f"{path}: {message}", param=path)


def _path(finding: ErrorDetails) -> str | None:
    *path, last = finding["loc"] or ("",)
    names = [step for place, step in enumerate(path) if place == 0 or not _is_branch(step)]
    if not (names and _is_branch(last)) or finding["type"] == "extra_forbidden":  # then it is what somebody sent
        names.append(last)
    return ".".join(map(str, names))[:200] or None


def _found(finding: ErrorDetails) -> str:
    kind, value = finding["type"], finding["input"]
    if kind.endswith(("too_short", "too_long")):
        return str(len(value))
    if kind in ("greater_than_equal", "less_than_equal", "less_than"):
        return quotation(value)
    if kind == "finite_number":
        return "more" if value > 0 else "less"
    return quotation(value) if kind == "literal_error" and isinstance(value, str) else _KINDS.get(type(value), "null")


def quotation(value: Any) -> str:
    """Return a number or a short text of the caller's as JSON in ASCII, and the kind of any other
    value."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(value) if len(value) <= LONGEST_VALUE else f"a text of {len(value)} characters"
    return "more" if isinstance(value, int) and value > 0 else "less" if isinstance(value, int) else "another value"


def _is_branch(step: int | str) -> bool:
    """Return whether a step of pydantic's path names a branch of a union (`list[...]`, `str`) and
    not a parameter."""
    return isinstance(step, str) and (step in {"str", "float"} or "[" in step or "(" in step)
