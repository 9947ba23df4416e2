"""Records in compiled code: a dataclass whose members are passed as if each were an argument of its
own.

Numba's own tuples forget which members are constants; of these, a function is compiled for each
constant apart, as it is for arguments.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from numba.core import cgutils, types
from numba.core.types.misc import VarArg
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import lower_builtin, lower_getattr_generic, models, register_model

_K = TypeVar("_K", bound=type)


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


class RecordType(types.Type):
    """A record whose members have these types."""

    def __init__(self, kind: Any, members: tuple[Any, ...]) -> None:
        self.members = dict(zip(_names(kind), members, strict=True))
        super().__init__(name=f"{kind.__name__}({', '.join(map(str, members))})")


@register_model(RecordType)
class _RecordModel(models.StructModel):
    def __init__(self, manager: Any, kind: RecordType) -> None:
        super().__init__(manager, kind, list(kind.members.items()))


def record(kind: _K) -> _K:
    """Let kernels make records of a dataclass, with positional arguments, and read their members.
    """
    class _Constructor(AbstractTemplate):
        key, prefer_literal = kind, True

        def generic(self, args: Any, kws: Any) -> Any:
            """A record of whatever types its members have."""
            return None if kws else signature(RecordType(kind, args), *args)
    infer_global(kind, types.Function(_Constructor))

    @lower_builtin(kind, VarArg(types.Any))
    def make(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        for name, value in zip(_names(kind), values, strict=True):
            setattr(made, name, value)
        return made._getvalue()
    return kind


@infer_getattr
class _Members(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, kind: RecordType, name: str) -> Any:
        """The type of a member; None for one that there is not."""
        return kind.members.get(name)


@lower_getattr_generic(RecordType)
def _member(context: Any, builder: Any, kind: RecordType, value: Any, name: str) -> Any:
    return getattr(cgutils.create_struct_proxy(kind)(context, builder, value), name)
