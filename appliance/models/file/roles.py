"""The role of each tensor in a model, whatever its rank in the file: whether its numbers are a
vector, a matrix, or a run of matrices of one shape.

The card of a model's family says so (`families.tensors`). A vector may have two dimensions
in a file (the biases of experts), and a matrix of one row has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from appliance.errors import FormatError, UnsupportedError
from appliance.models.file import gguf_kind, layout, quants
from appliance.models.file.gguf import GGUFFile, TensorInfo

Role = Literal["vector", "matrix", "run"]
Roles = Callable[[GGUFFile], Mapping[str, Role]]
"""The role of each tensor of a file, by name. A tensor without one is not kept in memory. Raises ModelError and
EngineError for a file that is not one whole model."""

_BY_RANK: tuple[Role, ...] = ("vector", "matrix", "run")
_RANKS: Mapping[Role, tuple[int, ...]] = {"vector": (1, 2), "matrix": (1, 2), "run": (3,)}


def by_rank(file: GGUFFile) -> Mapping[str, Role]:
    """The roles of tensors whose family nobody knows: vectors have one dimension, matrices two."""
    return {name: _BY_RANK[min(len(info.shape), 3) - 1] for name, info in file.tensors.items()}


@dataclass(frozen=True, slots=True)
class MatrixRun:
    """The shape of `runs` matrices that follow each other. A single matrix is a run of one."""

    info: TensorInfo
    runs: int
    rows: int  # of one matrix
    columns: int

    @classmethod
    def of(cls, info: TensorInfo) -> MatrixRun:
        """The shape of a tensor that is a matrix or a run. Slower dimensions than rows are runs."""
        *slower, rows, columns = (1, 1, *info.shape) if len(info.shape) == 1 else (1, *info.shape)
        runs = 1
        for count in slower:
            runs *= count
        return cls(info, runs, rows, columns)

    @property
    def source_nbytes(self) -> int:
        """Bytes of one matrix as the file has it."""
        return self.info.nbytes // self.runs

    @property
    def nbytes(self) -> int:
        """Bytes of one matrix in kernel order, padded to whole groups of rows."""
        return layout.interleaved_nbytes(self.info.format, self.rows, self.columns)


def check_runnable(file: GGUFFile, roles: Mapping[str, Role]) -> None:
    """Check a file before its tensors are used. Raises UnsupportedError for what is not one whole
    model, for block formats that do not run here, for tensors of more than three dimensions, and
    for vectors in blocks. Raises FormatError for a tensor that cannot have its role."""
    gguf_kind.check(file.metadata, len(file.tensors))
    for name, info in file.tensors.items():
        quants.require(info.format, f"tensor {name!r}")
        role = roles.get(name)
        if len(info.shape) > 3:
            raise UnsupportedError(f"tensor {name!r} has {len(info.shape)} dimensions; supported: 1 to 3")
        if role is not None and len(info.shape) not in _RANKS[role]:
            raise FormatError(f"tensor {name!r} is of shape {info.shape}; needed: a {role}")
        if role == "vector" and info.format.elements > 1:
            raise UnsupportedError(f"tensor {name!r} is a vector of {info.format.name}; "
                                   "supported: vectors of F32, F16 and BF16")
