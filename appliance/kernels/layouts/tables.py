"""Tables of 64-bit words that Python fills and kernels read: a class names the fields of one kind
of table, in order.

    class Run(Table):
        FIRST_ROW: int  # number of its first row
        COUNT: int  # rows

`Run(address).COUNT` reads a word, and `Run(address)[3]` is the third table after that one. Compiled
code does the same by a single load each, see `compiler.fields`. The annotation of a field says:

    int        a word: a count, a size in bytes, an address, or 0 for none
    float      a float32 in the low half of a word
    Room       a word that is used by its address, which is what reading it gives
    At[T]      a word with the address of a T: of a table, or of the first of many
    a Table    that whole table lies here
"""

from __future__ import annotations

import ctypes
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_type_hints

_T = TypeVar("_T")

Room = Annotated[int, "room"]
At = Annotated[_T, "at"]


class TableField(NamedTuple):
    """Where a field is, and what reading it gives."""

    offset: int  # bytes from the start of its table
    kind: Any  # int, float, Numbers or a Table
    how: str  # "word", "room", "at", or "table" for one that lies here


class Numbers(int):
    """int64 numbers one after the other; its value is the address of the first."""

    nbytes: ClassVar[int] = 8

    def __getitem__(self, index: int) -> int:
        return ctypes.c_int64.from_address(self + self.nbytes * index).value


class Table(int):
    """A table; its value is its address."""

    fields: ClassVar[dict[str, TableField]] = {}
    offsets: ClassVar[dict[str, int]] = {}  # bytes from the start of the table
    nbytes: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.fields, cls.nbytes = {}, 0
        for name in cls.__annotations__:
            kind, how = (*get_args(hints[name]), "")[:2] if get_args(hints[name]) else (hints[name], "word")
            if how == "word" and issubclass(kind, Table):
                how = "table"
            cls.fields[name] = TableField(cls.nbytes, kind, how)
            cls.nbytes += kind.nbytes if how == "table" else 8
        cls.offsets = {name: field.offset for name, field in cls.fields.items()}

    def __getitem__(self, index: int) -> Self:
        return type(self)(self + self.nbytes * index)

    def __getattr__(self, name: str) -> Any:
        if name not in self.fields:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        offset, kind, how = self.fields[name]
        if how in ("room", "table"):
            return kind(self + offset)
        read = ctypes.c_float if kind is float else ctypes.c_int64
        return kind(read.from_address(self + offset).value)
