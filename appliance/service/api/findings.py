"""The findings of pydantic on a request, as a refusal in words of ours."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from appliance.service.api.messages import unsupported
from appliance.service.api.problems import RequestError

# A finding of pydantic -> what is allowed there, with the bounds of its context
_ALLOWED = {
    "string_type": "a text", "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "literal_error": "{expected}", "finite_number": "a number within 1.8e308 of 0",
    "greater_than_equal": "{ge} or more", "less_than_equal": "{le} or less", "less_than": "less than {lt}",
    **dict.fromkeys(("string_too_short", "too_short"), "a length of {min_length} or more"),
    **dict.fromkeys(("string_too_long", "too_long"), "a length of {max_length} or less"),
}
_KINDS = {str: "a text", int: "an integer", float: "a number", bool: "a boolean", list: "a list", dict: "an object"}


def refusal(error: ValidationError) -> RequestError:
    """A finding of pydantic as a refusal to the caller, in words of ours: which parameter, what is
    allowed, what was found. Paths, bounds, sizes and kinds of values, never a value."""
    found = error.errors(include_url=False)
    for finding in found:  # an integer that is no float is one that is too large for it
        if finding["type"] == "float_type" and type(finding["input"]) is int:
            finding["type"] = "finite_number"
    # Present members come before absent ones: `"content": null` goes with tool calls, which are the
    # reason. Of a union's branches the one that got furthest: whose type fits, then whose path is
    # the longest, or leads to a later item.
    first = max(found, key=lambda finding: (
        not finding["type"].endswith("_type"), finding["type"] != "missing", len(finding["loc"]),
        [step for step in finding["loc"] if isinstance(step, int)]))
    path = _path(first)
    code = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter",
            "unsupported_parameter": "unsupported_parameter"}.get(first["type"], "invalid_value")
    words = unsupported(first)
    if words is not None:
        code, message = "unsupported_parameter", words
    elif code == "unknown_parameter":
        message = "this service does not know this parameter"
    elif code == "missing_required_parameter":
        message = "this parameter is required"
    elif first["type"] in _ALLOWED:
        kinds = [first] if not first["type"].endswith("_type") else [
            finding for finding in found if _path(finding) == path and finding["type"].endswith("_type")]
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
        return "less" if kind == "greater_than_equal" else "more"
    if kind == "finite_number":
        return "more" if value > 0 else "less"
    return "another text" if kind == "literal_error" and isinstance(value, str) else _KINDS.get(type(value), "null")


def _is_branch(step: int | str) -> bool:
    """Whether a step of pydantic's path names a branch of a union (`list[...]`, `str`) and not a
    parameter."""
    return isinstance(step, str) and (step in {"str", "float"} or "[" in step or "(" in step)
