"""Every error that a user of the appliance can meet.

    ApplianceError
    ├── PolicyError            the deployment policy cannot be used
    ├── ModelError             a model file cannot be used
    │   ├── FormatError        malformed bytes (GGUF, sealed)
    │   ├── UnsupportedError   well formed, but a feature we do not run; the feature is named
    │   ├── PinError           the bytes are not the ones that the policy pins
    │   ├── TamperedError      bytes that do not authenticate: altered, moved, cut off, or rolled back
    │   └── ModelKeyError      no key, or not the key that the model was sealed under
    ├── EngineError            inference cannot go on
    │   ├── TokenizerError
    │   ├── TemplateError
    │   │   └── RefusedMessagesError   a chat template's own words against the messages
    │   └── CapacityError      prompt or generation longer than the context or the policy allows
    ├── ConstraintError        a schema, pattern or grammar that would not be enforced to the letter
    ├── AttestationError       evidence cannot be made or is not acceptable
    │   ├── MalformedEvidenceError   bytes that are not what the format says
    │   ├── ForgedEvidenceError      a signature, digest, certificate chain or proof does not hold
    │   ├── RejectedEvidenceError    authentic, but not what was asked for; names each failed rule
    │   ├── UnsupportedEvidenceError a format, version, product or root that is not known here; it is named
    │   └── UncheckedEvidenceError   nothing wrong was found, but something to check it with is absent
    ├── AuditError             the audit log cannot be written, or is not what it was
    ├── NoteError              a signed note, checkpoint, proof or receipt that does not hold
    ├── StateError             the state disk cannot be used: absent, full, broken, altered
    ├── BootError              a boot step failed; names the step
    ├── DamagedError           a file of the installation is absent, cut or changed; it is named
    ├── ImageError             an image cannot be built, predicted or written; names file and field
    └── ServiceError           a request cannot be served

Each error carries a stable `code` (machine readable, kebab case), a terse `summary` (what was
found, where, what was expected) and a `hint` (what to do about it). Secrets and request content
never go into an error.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ApplianceError(Exception):
    """Base of all errors: `code`, `summary`, optional `hint`."""

    code = "error"

    def __init__(self, summary: str, *, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.summary if self.hint is None else f"{self.summary}\n  hint: {self.hint}"

    def as_json(self) -> dict[str, Any]:
        """For scripts: the same keys for every error."""
        return {"code": self.code, "reason": self.summary, "hint": self.hint}


def no_memory() -> ApplianceError:
    """The error to raise where there is none left."""
    return ApplianceError("no memory is left", code="memory", hint="give the process, or the machine, more")


def shortage(error: BaseException) -> ApplianceError | None:
    """The machine's shortage, where an exception of Python's says that something is short."""
    if isinstance(error, MemoryError):
        return no_memory()
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return ApplianceError("no thread can be started", code="threads", hint="allow the process more threads "
                              "(TasksMax in systemd, `--pids-limit` of a container, RLIMIT_NPROC) or more memory")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return ApplianceError("no more files can be open at the same time", code="files", hint="allow the process more "
                              "(LimitNOFILE in systemd, `--ulimit nofile` of a container, RLIMIT_NOFILE)")
    return None


class PolicyError(ApplianceError):
    """The deployment policy cannot be used."""

    code = "policy-invalid"


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """A PolicyError from within is about a file: it names it."""
    try:
        yield
    except PolicyError as error:
        raise type(error)(f"{path}: {error.summary}", hint=error.hint, code=error.code) from None


class ModelError(ApplianceError):
    """A model file cannot be used."""

    code = "model-error"


class FormatError(ModelError):
    """Malformed bytes in a model file."""

    code = "model-malformed"


class UnsupportedError(ModelError):
    """A well-formed model that asks for a feature which is not run here; the feature is named."""

    code = "model-unsupported"


class PinError(ModelError):
    """The bytes read are not the ones that the policy pins."""

    code = "model-pin-mismatch"


class TamperedError(ModelError):
    """Bytes that do not authenticate: altered, moved, cut off, or rolled back. Nothing of them was
    used."""

    code = "model-tampered"


class ModelKeyError(ModelError):
    """The key of a sealed model cannot be had, or is not the one that the model was sealed under.
    """

    code = "model-key"


class EngineError(ApplianceError):
    """Inference cannot go on."""

    code = "engine-error"


class TokenizerError(EngineError):
    """Text or vocabulary that the tokenizer cannot handle."""

    code = "tokenizer-error"


class TemplateError(EngineError):
    """A chat template that is missing, malformed, or too costly to run."""

    code = "template-error"


class RefusedMessagesError(TemplateError):
    """A chat template's objection to the messages, in its own words, which their sender may see."""


class CapacityError(EngineError):
    """Prompt or generation longer than the context or the policy allows."""

    code = "capacity-exceeded"


class ConstraintError(ApplianceError):
    """A schema, pattern or grammar that would not be enforced to the letter, or is too large.

    `path` leads to the keyword at fault, as "properties.a.pattern"; "" where there is none. It has
    the request's own words, which the summary has not.
    """

    code = "constraint-refused"

    def __init__(self, summary: str, *, path: str = "", hint: str | None = None, code: str | None = None) -> None:
        super().__init__(summary, hint=hint, code=code)
        self.path = path


class AttestationError(ApplianceError):
    """Evidence cannot be made or is not acceptable."""

    code = "attestation-error"


class MalformedEvidenceError(AttestationError):
    """Evidence, or a nonce, whose bytes are not what the format says."""

    code = "evidence-malformed"


class ForgedEvidenceError(AttestationError):
    """Evidence in which a signature, a digest, a certificate chain or a proof does not hold."""

    code = "evidence-forged"


class RejectedEvidenceError(AttestationError):
    """Authentic evidence that is not what was asked for; the summary names each failed rule."""

    code = "evidence-rejected"


class UnsupportedEvidenceError(AttestationError):
    """Evidence of a format, version, product or root of trust that is not known here; the summary
    names it."""

    code = "evidence-unsupported"


class UncheckedEvidenceError(AttestationError):
    """Evidence that nothing speaks against, but that cannot be checked: a certificate or collateral
    is absent."""

    code = "evidence-unchecked"


class AuditError(ApplianceError):
    """The audit log cannot be written; the appliance does not go on without it."""

    code = "audit-error"


class NoteError(ApplianceError):
    """A signed note, checkpoint, proof or receipt is malformed, or does not hold."""

    code = "note-error"


class StateError(ApplianceError):
    """The state disk cannot be used: absent, full, broken, or somebody altered it."""

    code = "state-error"


class BootError(ApplianceError):
    """A boot step failed; the summary names the step, what was expected and what was found."""

    code = "boot-failed"


class DamagedError(ApplianceError):
    """A file of the installation is absent, cut or changed; the summary names it, what was expected
    and found."""

    code = "installation-damaged"


class ImageError(ApplianceError):
    """An image cannot be built, predicted, converted or booted; the summary names the file and what
    is wrong."""

    code = "image-error"


class ServiceError(ApplianceError):
    """A request cannot be served."""

    code = "service-error"
