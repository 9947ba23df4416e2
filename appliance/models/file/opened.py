"""The common part of every way to keep a model: the header of its GGUF file, and lookups that say
what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.models.file import gguf_kind, quants
from appliance.models.file.gguf import GGUFFile, TensorInfo
from appliance.models.file.metadata import Metadata


class OpenModel:
    """An open model. Close it, or use it in a `with` block."""

    gguf: GGUFFile
    sha256: bytes
    """SHA-256 (32 bytes) of the GGUF file that the weights came from."""
    header_sha256: bytes | None = None
    """SHA-256 (32 bytes) of a sealed file's header; None for a plain file."""
    closed = False
    """Whether its memory was given back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def residency(self) -> str:
        """How its weights are kept, for people."""
        return "resident"

    @property
    def failure(self) -> str | None:
        """Code of the error that ended it, from a disk that lies or fails. None while it
        answers."""
        return None

    @property
    def plaintext_nbytes(self) -> int:
        """Bytes of plaintext weights that can exist at one moment if it is streamed, else 0."""
        return 0

    @property
    def metadata(self) -> Metadata:
        """The model's key-value pairs."""
        return self.gguf.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The model's tensors, by name."""
        return self.gguf.tensors

    def tensor(self, name: str, dimensions: int) -> TensorInfo:
        """Return the matrix (2 dimensions) or vector (1) of a name. Raises FormatError if there is
        none of this kind, ModelError when the model was closed."""
        if self.closed:
            raise ModelError("the model was closed")
        info = self.tensors.get(name)
        if info is None or len(info.shape) != dimensions:
            found = "missing" if info is None else f"of shape {info.shape}"
            raise FormatError(f"tensor {name!r} is {found}; needed: a {'matrix' if dimensions == 2 else 'vector'}")
        return info

    def close(self) -> None:
        """Give the memory back. Addresses handed out before are void from here on."""
        raise NotImplementedError

    def wipe(self) -> None:
        """As `close`, and waits for no thread that reads."""
        self.close()


def check_runnable(file: GGUFFile) -> None:
    """Raises UnsupportedError for what is not one whole model, for block formats that do not run
    here, for tensors of more than two dimensions, and for vectors in blocks."""
    gguf_kind.check(file.metadata, len(file.tensors))
    for info in file.tensors.values():
        quants.require(info.format, f"tensor {info.name!r}")
        if len(info.shape) > 2:
            raise UnsupportedError(f"tensor {info.name!r} has {len(info.shape)} dimensions; supported: 1 and 2")
        if len(info.shape) == 1 and info.format.elements > 1:
            raise UnsupportedError(f"tensor {info.name!r} is a vector of {info.format.name}; "
                                   "supported: vectors of F32, F16 and BF16")
