"""The manifest of a pack: a digest for each member, and by what the packer judged it.

It is the archive's first entry, in canonical JSON, and binds the bytes of every other one: its
content, and how that is deflated. docs/formats/audit-pack.md specifies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from appliance.auditor.archive import zipped
from appliance.auditor.archive.members import KINDS, MIB, MOST_OF_A_KIND, kind_of, order
from appliance.auditor.archive.zipped import Entry, damaged
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import AuditError

NAME, FORMAT = "manifest.json", "appliance/audit-pack/v1"
MAX_TOTAL_BYTES = 512 * MIB  # of all contents
_MOST = 4 * MIB

Hex32 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
Hex = Annotated[str, StringConstraints(strict=True, pattern=r"^(?:[0-9a-f]{2}){16,64}$")]
Text = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{1,128}$")]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
Flag = Annotated[bool, Field(strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(_Part):
    """One member: its content, and its bytes in the archive."""

    kind: Text
    name: Text
    size: Count
    sha256: Hex32
    packed_size: Count
    packed_sha256: Hex32


class Judged(_Part):
    """The packer's side of the judgement that the report in the pack shows. It proves nothing."""

    at: Annotated[str, StringConstraints(strict=True, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    builder_key: Hex32 | None
    measurements_unsigned: Flag
    need_revocation: Flag
    nonces: tuple[Hex, ...] = Field(max_length=MOST_OF_A_KIND)

    @property
    def time(self) -> datetime:
        """`at`. Raises AuditError for a day that there is not."""
        try:
            return datetime.strptime(self.at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise damaged(NAME, f"there is no time {self.at}") from None


class Manifest(_Part):
    """The whole. `missing`: the kinds that the pack has nothing of."""

    format: Literal["appliance/audit-pack/v1"] = "appliance/audit-pack/v1"
    version: Text
    judged: Judged
    members: tuple[Member, ...] = Field(max_length=zipped.MAX_ENTRIES)
    missing: tuple[Text, ...] = Field(max_length=len(KINDS))

    def encode(self) -> bytes:
        """Return its one form (RFC 8785)."""
        return canonical(self.model_dump(mode="json"))


def pack(members: Mapping[str, bytes], judged: Judged, version: str) -> bytes:
    """Return the archive of these members, by their names in it. Raises AuditError if one is too
    large."""
    for name, content in members.items():
        if len(content) > _most(name):
            raise AuditError(f"pack: {name}: {len(content)} bytes, at most {_most(name)} are taken", code="pack-size",
                             hint="a long log can be packed by epochs, or as extracts: `appliance audit export`")
    entries = [zipped.entry(name, members[name]) for name in sorted(members, key=order)]
    listed = tuple(_member(each, members[each.name]) for each in entries)
    made = Manifest(version=version, judged=judged, members=listed, missing=lacking(members))
    return zipped.written([zipped.stored(NAME, made.encode()), *entries])


def _member(each: Entry, content: bytes) -> Member:
    kind = kind_of(each.name)
    return Member(kind="" if kind is None else kind.name, name=each.name, size=each.size,
                  sha256=hashlib.sha256(content).hexdigest(), packed_size=len(each.packed),
                  packed_sha256=hashlib.sha256(each.packed).hexdigest())


def lacking(names: Mapping[str, object]) -> tuple[str, ...]:
    """Return the kinds of which there is nothing among these names, in the order of the table."""
    return tuple(kind.name for kind in KINDS if not kind.optional and not any(map(kind.holds, names)))


def _most(name: str) -> int:
    """Return the bytes that a member may have. Raises AuditError for a name that no pack has."""
    kind = kind_of(name)
    if name == NAME:
        return _MOST
    if kind is None:
        raise damaged(name, "a pack has no such member")
    return kind.most


def unpack(data: bytes) -> tuple[Manifest, dict[str, bytes]]:
    """Return manifest and members of a pack. Raises AuditError, which names the member whose bytes
    differ from the packed ones."""
    entries = zipped.read(data, _most)
    first = next(iter(entries))
    if first != NAME or entries[first].method != zipped.STORED:  # deflated, it would have bits that say nothing
        raise damaged(first, f"a pack begins with {NAME}, not deflated")
    manifest = _parsed(entries[NAME].content())
    listed = {each.name: each for each in manifest.members}
    rest = [each for name, each in entries.items() if name != NAME]
    for each in rest:
        if each.name not in listed:
            raise damaged(each.name, "the manifest does not have it")
        if hashlib.sha256(each.packed).hexdigest() != listed[each.name].packed_sha256:
            raise damaged(each.name, "its bytes differ from those in the manifest")
    if gone := [name for name in listed if name not in entries]:
        raise damaged(gone[0], "the manifest has it, and the archive has not")
    if sum(each.size for each in rest) > MAX_TOTAL_BYTES:
        raise damaged("the archive", f"more than {MAX_TOTAL_BYTES} bytes of content")
    found = {}
    for each in rest:
        content = found[each.name] = each.content()
        if _member(each, content) != listed[each.name]:
            raise damaged(each.name, "its content is not what the manifest binds")
    return _complete(manifest, found), found


def _parsed(content: bytes) -> Manifest:
    try:
        value = strict.json_value(content, integers=True)
        found = Manifest.model_validate(value)
        if found.encode() != content:
            raise ValueError("another spelling")
    except (ValueError, ValidationError):
        raise damaged(NAME, "it is not in form") from None
    return found


def _complete(manifest: Manifest, found: Mapping[str, bytes]) -> Manifest:
    names = [each.name for each in manifest.members]
    if names != sorted(found, key=order) or manifest.missing != lacking(found):
        raise damaged(NAME, "its lists are not those of the archive")
    return manifest
