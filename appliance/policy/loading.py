"""A policy file to a `Loaded` policy, or to all of its findings."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.codec import filekind
from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import PolicyError
from appliance.policy import bind, rules
from appliance.policy.digest import host_data, policy_digest
from appliance.policy.enforcement import UNSEALED, unbootable
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import Diagnostic, Position, Report, Span, Text, render
from appliance.policy.schema import Policy
from appliance.policy.schema.base import fields
from appliance.policy.schema.versions import LATEST

NEVER_BOOTS = frozenset({"unenforced", "unbootable"})  # codes of notes: no boot of this version gets past the field


class InvalidPolicyError(PolicyError):
    """A policy with findings; all of them are in `diagnostics`."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        super().__init__(f"the policy has {len(errors)} error{'s' * (len(errors) != 1)}\n{render(errors)}",
                         hint="`appliance check FILE` shows this list, and the whole of what is allowed is in "
                         "`appliance schema`")
        self.diagnostics = diagnostics

    def as_json(self) -> dict[str, Any]:
        """With each finding as `check --json` has it."""
        return super().as_json() | {"diagnostics": [diagnostic.as_json() for diagnostic in self.diagnostics]}


@dataclass(frozen=True)
class Positions:
    """Where each field stands in the file, by path: HCL names and labels, `("model", "demo",
    "file")`."""

    text: Text
    spans: Mapping[bind.Path, Span]

    def of(self, path: bind.Path) -> Position:
        """Return where a field stands; for one left to its default, the block around it."""
        return self.text.position(self.span(path))

    def span(self, path: bind.Path) -> Span:
        """Return the characters of a field, or of the nearest block around it."""
        while path and path not in self.spans:
            path = path[:-1]
        return self.spans.get(path, Span(0, 1))


@dataclass(frozen=True)
class Checked:
    """The outcome of checking a text: findings, and the policy if none of them is an error."""

    diagnostics: tuple[Diagnostic, ...]
    policy: Policy | None
    positions: Positions
    source_sha384: bytes = field(repr=False)  # of the file's bytes as they are
    version: int | None = None  # the schema version that it declares; None where that is none or unknown

    @property
    def valid(self) -> bool:
        """Whether there is no error (there may be warnings and notes)."""
        return self.policy is not None

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The fields of a valid policy for which this version boots it nowhere."""
        return tuple(found.path for found in self.diagnostics if found.code in NEVER_BOOTS)


@dataclass(frozen=True)
class Loaded:
    """A valid policy, its digests, and where its fields stand."""

    policy: Policy
    digest: bytes  # 48 bytes: the policy digest, which evidence carries
    source_sha384: bytes  # 48 bytes: of the file as it is, comments and all
    path: Path
    positions: Positions
    diagnostics: tuple[Diagnostic, ...]  # warnings and notes

    @property
    def host_data(self) -> bytes:
        """The 32 bytes that stand for the digest in SEV-SNP's HOST_DATA."""
        return host_data(self.digest)


def check(text: str, filename: str = "policy.hcl") -> Checked:
    """Check a policy's text; never raises on account of it."""
    return check_bytes(text.encode("utf-8", errors="surrogatepass"), filename)


def check_bytes(data: bytes, filename: str = "policy.hcl", nbytes: int | None = None) -> Checked:
    """Check a policy file's bytes; never raises on account of them. `nbytes` is the file's length
    if they are only its beginning."""
    digest = hashlib.sha384(data).digest()
    if (kind := filekind.foreign(data)) is not None:  # its lines are not shown: it may be a key
        report = Report(Text("", filename))
        report.error("kind", f"this is {kind.what}, not a policy", Span(0, 0), fix=kind.use)
        return Checked(report.sorted(), None, Positions(report.text, {}), digest)
    text, problem, where = parser.decode(data, nbytes)
    report = Report(Text(text, filename))
    if problem is not None:
        fix = "make it shorter" if len(data) > parser.MAX_BYTES else "save the file as plain UTF-8"
        report.error("encoding", problem, where, fix=fix,
                     detail=f"UTF-8, at most {parser.MAX_BYTES} bytes")
        if not text:
            return Checked(report.sorted(), None, Positions(report.text, {}), digest)
    body = parser.parse(report, top_level=[shape.name for shape in fields(Policy)])
    policy, spans = bind.bind(body, report)
    declared = bind.declared_version(body)
    version = declared or LATEST
    rules.apply(policy, spans, report, version)
    positions = Positions(report.text, spans)
    if report.failed:
        return Checked(report.sorted(), None, positions, digest, declared)
    for path, reason in unbootable(policy):
        fix = 'seal the model, or write streaming_decrypt = "auto"' if reason == UNSEALED else "leave it out"
        report.add("note", "unbootable" if reason == UNSEALED else "unenforced",
                   f"{bind.path_text(path, version)}: {reason}", positions.span(path),
                   path=bind.path_text(path, version), fix=f"the boot refuses it; {fix} to boot this version")
    return Checked(report.sorted(), policy, positions, digest, version)


def read(path: Path) -> bytes:
    """Return a policy file's bytes, at most one more than allowed; raise `PolicyError` where it
    cannot be read."""
    try:
        with os.fdopen(open_file(path)[0], "rb") as file:
            return file.read(parser.MAX_BYTES + 1)
    except WrongKindError:  # a pipe or device would block, or never end
        raise PolicyError(f"{path} is no regular file", code="policy-unreadable", hint="give a policy file") from None
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
                          code="policy-unreadable", hint="give the path of a policy file") from None


def check_file(path: str | Path) -> Checked:
    """Check a policy file; raise `PolicyError` only where it cannot be read."""
    data = read(Path(path))
    return check_bytes(data, str(path), Path(path).stat().st_size if len(data) > parser.MAX_BYTES else None)


def load(path: str | Path) -> Loaded:
    """Read and check a policy file; raise `PolicyError`, with `.diagnostics` where the text is at
    fault."""
    checked = check_file(path)
    if checked.policy is None:
        raise InvalidPolicyError(checked.diagnostics)
    return Loaded(checked.policy, policy_digest(checked.policy), checked.source_sha384, Path(path), checked.positions,
                  checked.diagnostics)
