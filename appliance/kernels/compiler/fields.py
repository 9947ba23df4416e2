"""Tables in compiled code: a Table of `layouts.tables` is its address, reading a field one load,
writing it one store.

`Weight(address)`, `weight.COLUMNS`, `layer.QUERY[1].BIAS` and `step.TOKENS[row]` compile to the
instructions that addresses and offsets by hand would give: nothing is left of a table. Where an
int64 is asked for, a table is its address.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import (
    lower_builtin,
    lower_cast,
    lower_getattr_generic,
    lower_setattr_generic,
    models,
    register_model,
    type_callable,
)

from appliance.kernels.compiler.emit import F32, I64, Code, Val
from appliance.kernels.layouts import blind, fetch, pack, search, step  # noqa: F401  whose tables are declared below
from appliance.kernels.layouts.tables import Numbers, Table, TableField


class TableType(types.Type):
    """A table of some kind, or numbers."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        super().__init__(name=f"{kind.__module__}.{kind.__name__}")

    def can_convert_to(self, typingctx: Any, other: Any) -> Any:
        """To its address."""
        return Conversion.safe if other == types.int64 else None


@register_model(TableType)
class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: TableType) -> None:
        super().__init__(manager, kind, I64)


_KINDS = {kind: TableType(kind) for kind in (Numbers, *Table.__subclasses__())}
_SCALARS = {int: types.int64, float: types.float32}


@lower_cast(TableType, types.int64)
def _address(context: Any, builder: Any, old: Any, new: Any, value: Any) -> Any:
    return value


def _declare(kind: Any) -> None:
    """Let kernels call the class with an address."""
    @type_callable(kind)
    def typed(context: Any) -> Any:
        return lambda address: _KINDS[kind] if isinstance(address, (types.Integer, TableType)) else None

    @lower_builtin(kind, types.Any)
    def lowered(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        given = sig.args[0]
        return values[0] if isinstance(given, TableType) else context.cast(builder, values[0], given, types.int64)


for _kind in _KINDS:
    _declare(_kind)


def _moved(code: Code, address: Any, nbytes: Any) -> Any:
    """An address so many bytes on, by the addition that numba makes of `+`."""
    return Val(code, code.b.add(address, nbytes, flags=["nsw"]))


def _place(code: Code, address: Any, field: TableField) -> Any:
    return _moved(code, address, ir.Constant(I64, field.offset))


# --- fields ---------------------------------------------------------------------------------------
@infer_getattr
class _Fields(AttributeTemplate):
    key = TableType

    def generic_resolve(self, kind: TableType, name: str) -> Any:
        """The type of what reading a field gives; None for one that there is not."""
        field = getattr(kind.kind, "fields", {}).get(name)
        return None if field is None else _KINDS.get(field.kind) or _SCALARS[field.kind]


@lower_getattr_generic(TableType)
def _read(context: Any, builder: Any, kind: TableType, value: Any, name: str) -> Any:
    code, field = Code(builder), kind.kind.fields[name]
    place = _place(code, value, field)
    if field.how in ("room", "table"):
        return place.ir
    return code.load(place, F32 if field.kind is float else I64).ir


@lower_setattr_generic(TableType)
def _write(context: Any, builder: Any, sig: Any, values: Any, name: str) -> None:
    code, (place, value) = Code(builder), values
    kind, given = sig.args
    word = context.cast(builder, value, given, types.int64)
    code.store(_place(code, place, kind.kind.fields[name]), Val(code, word))


# --- many, one after the other --------------------------------------------------------------------
@infer_global(operator.getitem)
class _Items(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        """A number, or a table."""
        of, index = args
        if not isinstance(of, TableType) or not isinstance(index, types.Integer):
            return None
        return signature(types.int64 if of.kind is Numbers else of, of, types.int64)


@lower_builtin(operator.getitem, TableType, types.int64)
def _item(context: Any, builder: Any, sig: Any, values: Any) -> Any:
    code, (address, index) = Code(builder), values
    kind = sig.args[0].kind
    offset = builder.mul(ir.Constant(I64, kind.nbytes), index, flags=["nsw"])
    place = _moved(code, address, offset)
    return code.load(place, I64).ir if kind is Numbers else place.ir
