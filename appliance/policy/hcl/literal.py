"""The program's values as a policy writes them: the way back from `kinds`."""

from __future__ import annotations

from typing import Any

from appliance.policy.schema.kinds import Duration, Kind, SetOf, Size


def text(kind: Kind, value: Any) -> str | None:
    """Return a value in the language; None for the value of an absent field, which has no literal.
    """
    if value is None:
        return None
    if isinstance(kind, Size | Duration):
        unit = next(unit for unit, size in reversed(kind.units.items()) if value % size == 0)
        return f'"{value // kind.units[unit]}{unit}"' if value else f'"0{next(iter(kind.units))}"'
    if isinstance(kind, SetOf):
        return f"[{', '.join(text(kind.item, item) or '' for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _string(value) if isinstance(value, str) else str(value)


def _string(value: str) -> str:
    """Return a string in quotes, with HCL's escapes."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    quoted = "".join(escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return '"' + quoted.replace("${", "$${").replace("%{", "%%{") + '"'
