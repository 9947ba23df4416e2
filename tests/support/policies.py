"""Policies for tests: a small valid text, marked snippets, and policies with every field set."""

from __future__ import annotations

from typing import Any

from appliance.policy.explaining.checking import CheckResult, check
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, fields
from appliance.policy.schema.identifiers import (
    ADVISORY,
    API_VERSION,
    CSP_ID,
    DEVICE,
    DNS_NAME,
    FIELD,
    MITIGATIONS,
    NAME,
    RESOURCE,
    TEE_TCB_SVN,
    VARIABLE,
    XFAM,
    FreeText,
    Hash,
    HttpsUrl,
    IpAddress,
    Matching,
    OneOf,
    Path,
    TaggedHex,
)
from appliance.policy.schema.kinds import (
    Duration,
    Kind,
    ListOf,
    Number,
    Order,
    Pick,
    SetOf,
    Size,
    Switch,
    Version,
    Whole,
)
from appliance.policy.schema.patterns import BoundedRegex

BASE = """\
appliance {
  name   = "demo"
  schema = 1
}
tee {
  platforms = ["simulated"]
}
model "demo" {
  file   = "demo.gguf"
  sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
}
privacy {
}
limits {
}
tenants {
  tenant "acme" {
    models         = ["demo"]
    api_key_sha256 = ["2b1d8a7f6e5c4b3a29180716253443526170a8b9c0d1e2f3a4b5c6d7e8f90a1b"]
  }
}
service {
  listen "api" {
    kind = "tcp"
    port = 8080
  }
}
audit {
}
"""
PUBLIC = "ed25519:2385055e832db340b0abcbe0e37ebfd7cbfa4b19e92dd5dd8d2afbe1a29d142c"
MARK = "«"


def hardware(platform: str = "sev-snp") -> str:
    """Return the base policy for a real platform: tenants by signed list, connections tied to evidence."""
    text = BASE.replace('"simulated"', f'"{platform}"').replace('kind = "tcp"', 'kind = "ra-tls"')
    signed = f'  authority = "{PUBLIC}"\n  list      = "tenants.json"\n}}\n'
    return text[:text.index('  tenant "acme"')] + signed + text[text.index("service {"):]


def with_lines(block: str, lines: str, base: str = BASE) -> str:
    """Return the base policy with lines added at the start of a top-level block; block "" means the end."""
    if not block:
        return base + lines + "\n"
    at = base.index("{\n", base.index(f"\n{block}") + 1 if not base.startswith(block) else 0) + 2
    return base[:at] + lines + "\n" + base[at:]


def in_schema(version: int, text: str = BASE) -> str:
    """Return a policy's text with another schema version declared."""
    return text.replace("schema = 1", f"schema = {version}", 1)


def marked(text: str) -> tuple[str, tuple[int, int]]:
    """Return a text without its mark, and the line and column where the mark stood."""
    before, _, after = text.partition(MARK)
    return before + after, (before.count("\n") + 1, len(before) - before.rfind("\n"))


def valid(text: str) -> Policy:
    """Return the policy of a text that must be valid."""
    checked: CheckResult = check(text)
    if checked.policy is None:
        raise AssertionError("\n".join(map(str, checked.diagnostics)))
    return checked.policy


_SAMPLES: dict[Matching, tuple[str, str]] = {
    NAME: ("one", "two"), VARIABLE: ("ONE", "TWO"), DEVICE: ("/dev/vdb", "/dev/vdc"), RESOURCE: ("a/b", "a/c"),
    DNS_NAME: ("a.example", "b.example"), ADVISORY: ("INTEL-SA-00001", "INTEL-SA-00002"),
    API_VERSION: ("1.55", "1.56"), FIELD: ("user", "metadata.id"),
    MITIGATIONS: ("0xb", "0x3f"), CSP_ID: ("CN=cc-us-east-2.amazonaws.com", "A Cloud"),
    TEE_TCB_SVN: ("05" + "00" * 15, "06" + "00" * 15), XFAM: ("0x00000000000000e7", "0x00000000000602e7"),
}


def two_values(kind: Kind) -> tuple[Any, Any]:
    """Return two different literals that a kind allows."""
    if isinstance(kind, Matching):
        return _SAMPLES[kind]
    if isinstance(kind, ListOf):
        one, two = two_values(kind.item)
        return [one, two], [two, one]
    if isinstance(kind, SetOf):
        one, two = two_values(kind.item)
        return ([one, two], [two, one]) if isinstance(kind, ListOf) else ([one], [one, two])
    table: list[tuple[type[Kind], Any]] = [
        (Switch, lambda k: (True, False)), (Whole, lambda k: (k.low, k.low + 1)), (Number, lambda k: (k.low, k.high)),
        (Size | Duration, lambda k: (k.low, k.high)),  # type: ignore[list-item]
        (Pick, lambda k: (k.options[0], k.options[-1])), (Order, lambda k: (k.names[0], ";".join(k.names[::-1]))),
        (Hash, lambda k: ("01" * (k.bits // 8), "02" * (k.bits // 8))),
        (TaggedHex, lambda k: (f"{k.algorithm}:" + "03" * k.nbytes, f"{k.algorithm}:" + "04" * k.nbytes)),
        (OneOf, lambda k: two_values(k.kinds[0])),
        (Path, lambda k: ("/a/b", "/a/c") if k.absolute else ("a.gguf", "b.gguf")),
        (IpAddress, lambda k: ("127.0.0.1", "::1")), (HttpsUrl, lambda k: ("https://a.example", "https://b.example")),
        (FreeText, lambda k: ("x", "xy")), (BoundedRegex, lambda k: ("ab", "cd")),
    ]
    pair: tuple[Any, Any] = next(make(kind) for cls, make in table if isinstance(kind, cls))
    return pair


def every_field(cls: type[Block] = Policy, place: str = "", label: str = "one", choose: int = 0,
                override: tuple[str, Any] | None = None, relabel: str = "", version: int = frozen.LATEST) -> Any:
    """Return a block in which every field has a value and every optional block stands; `override` is the path of one
    leaf, without labels, and its parsed value; `relabel` the path of a block whose label is "two" instead of "one".
    Rules between fields are not asked."""
    table = frozen.table(version)
    values: dict[str, Any] = {} if cls.LABEL is None else {cls.LABEL: label}
    for shape in fields(cls, version):
        where = f"{place}.{shape.name}" if place else shape.name
        if where not in table:
            raise AssertionError(f"{where} is not in the frozen table")
        if shape.block is not None:
            labels = shape.labels or ("two" if relabel == where else "one",)
            blocks = tuple(every_field(shape.block, where, label, choose, override, relabel, version)
                           for label in labels)
            values[shape.attribute] = blocks if shape.labelled else blocks[0]
        elif shape.kind is not None:
            value = version if isinstance(shape.kind, Version) else shape.kind.parse(two_values(shape.kind)[choose])
            if override is not None and override[0] == where:
                value = override[1]
            values[shape.attribute] = value
    block = cls.model_construct()
    block.__dict__.update(values)  # by attribute: two fields of different versions may share an HCL name
    return block


def versioned_leaves() -> list[tuple[int, str, Kind]]:
    """Return version, path and kind of every plain field of every version."""
    return [(version, *leaf) for version in frozen.VERSIONS for leaf in leaves(version)]


def leaves(version: int = frozen.LATEST, cls: type[Block] = Policy, place: str = "") -> list[tuple[str, Kind]]:
    """Return the path and kind of every plain field of a version."""
    found: list[tuple[str, Kind]] = []
    for shape in fields(cls, version):
        where = f"{place}.{shape.name}" if place else shape.name
        if shape.block is not None:
            found += leaves(version, shape.block, where)
        elif shape.kind is not None:
            found.append((where, shape.kind))
    return found
