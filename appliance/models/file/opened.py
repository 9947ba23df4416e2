"""The common part of every way to keep a model: the header of its GGUF file, and lookups that say
what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from appliance.errors import FormatError, ModelError
from appliance.models.file.gguf import GGUFFile, TensorInfo
from appliance.models.file.metadata import Metadata
from appliance.models.file.roles import MatrixRun, Role


class OpenModel:
    """An open model. Close it, or use it in a `with` block."""

    gguf: GGUFFile
    sha256: bytes
    """SHA-256 (32 bytes) of the GGUF file that the weights came from."""
    header_sha256: bytes | None = None
    """SHA-256 (32 bytes) of a sealed file's header; None for a plain file."""
    roles: Mapping[str, Role] = {}
    """The role of each tensor that it keeps, by name."""
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

    def vector_info(self, name: str) -> TensorInfo:
        """Return the entry of a vector. Raises FormatError if there is none of this name and kind,
        ModelError when the model was closed."""
        return self._tensor(name, "vector")

    def matrix_run(self, name: str) -> MatrixRun:
        """Return the shape of a matrix, or of a run of them. Errors as `vector_info`."""
        return MatrixRun.of(self._tensor(name, "matrix", "run"))

    def _tensor(self, name: str, *roles: Role) -> TensorInfo:
        if self.closed:
            raise ModelError("the model was closed")
        info = self.tensors.get(name)
        if info is None or self.roles.get(name) not in roles:
            found = "missing" if info is None else f"of shape {info.shape}"
            raise FormatError(f"tensor {name!r} is {found}; needed: a {roles[0]}")
        return info

    def close(self) -> None:
        """Give the memory back. Addresses handed out before are void from here on."""
        raise NotImplementedError

    def wipe(self) -> None:
        """As `close`, and waits for no thread that reads."""
        self.close()

