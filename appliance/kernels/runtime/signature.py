"""C signatures of kernels, written as numba writes them: `"i8(i8,f4)"` takes an int64 and a
float32, gives an int64."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

# Digits are bytes; `i8` also carries every address.
_SCALARS: dict[str, Any] = {
    "void": None, "i1": ctypes.c_int8, "u1": ctypes.c_uint8, "i2": ctypes.c_int16, "u2": ctypes.c_uint16,
    "i4": ctypes.c_int32, "u4": ctypes.c_uint32, "i8": ctypes.c_int64, "u8": ctypes.c_uint64, "f4": ctypes.c_float,
    "f8": ctypes.c_double,
}
_FORM = re.compile(r"(\w+)\(([\w,]*)\)")


@dataclass(frozen=True)
class CSignature:
    """Result and argument types of a kernel."""

    result: str
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CSignature:
        """Parse `result(argument,...)`; ValueError names what is not a scalar of the C boundary."""
        match = _FORM.fullmatch(text.replace(" ", ""))
        if match is None:
            raise ValueError(f"kernel signature {text!r} is not of the form result(argument,...)")
        arguments = tuple(match[2].split(",")) if match[2] else ()
        for name in (match[1], *arguments):
            if name not in _SCALARS:
                raise ValueError(f"kernel signature {text!r}: {name!r} is none of {', '.join(_SCALARS)}")
        if "void" in arguments:
            raise ValueError(f"kernel signature {text!r}: an argument cannot be void")
        return cls(match[1], arguments)

    def __str__(self) -> str:
        return f"{self.result}({','.join(self.arguments)})"

    @property
    def prototype(self) -> Any:
        """The ctypes function type; a call through it releases the interpreter lock."""
        return ctypes.CFUNCTYPE(_SCALARS[self.result], *(_SCALARS[name] for name in self.arguments))
