"""A policy file to a `Loaded` policy, or to its first mistake."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import PolicyError
from appliance.policy import bind, rules
from appliance.policy.digest import host_data, policy_digest
from appliance.policy.hcl import parser
from appliance.policy.hcl.diagnostics import Diagnostic, Position, Report, SourceText, Span
from appliance.policy.schema import Policy
from appliance.policy.schema.versions import LATEST


@dataclass(frozen=True)
class Positions:
    """Where each field stands in the file, by path: HCL names and labels, `("model", "demo",
    "file")`."""

    text: SourceText
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
class Loaded:
    """A valid policy, its digests, and where its fields stand."""

    policy: Policy
    digest: bytes  # 48 bytes: the policy digest, which evidence carries
    source_sha384: bytes  # 48 bytes: of the file as it is, comments and all
    path: Path
    positions: Positions
    diagnostics: tuple[Diagnostic, ...] = ()  # warnings and notes, at a desk

    @property
    def host_data(self) -> bytes:
        """The 32 bytes that stand for the digest in SEV-SNP's HOST_DATA."""
        return host_data(self.digest)


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


def load(path: str | Path) -> Loaded:
    """Read a policy file. Raises `PolicyError` where it cannot be read, and InvalidPolicyError at
    its first mistake."""
    data = read(Path(path))
    content, problem, where = parser.decode(data, Path(path).stat().st_size if len(data) > parser.MAX_BYTES else None)
    text = SourceText(content, str(path))
    if problem is not None:
        raise text.refusal("encoding", problem, where, f"UTF-8, at most {parser.MAX_BYTES} bytes")
    report, body = Report(text), parser.parse(text)
    policy, spans = bind.bind(body, report)
    rules.require(policy, spans, report, bind.declared_version(body) or LATEST)
    return loaded(policy, Positions(text, spans), hashlib.sha384(data).digest(), Path(path))


def loaded(policy: Policy, positions: Positions, source_sha384: bytes, path: Path,
           diagnostics: tuple[Diagnostic, ...] = ()) -> Loaded:
    """Return a valid policy with its digests."""
    return Loaded(policy, policy_digest(policy), source_sha384, path, positions, diagnostics)
