"""The SEV-SNP launch that an IGVM file lays out, and its digest.

Pages are measured in the order of their headers, then the save areas in the order of virtual CPUs.
A page without content counts as a page of zeros, as the format says and QEMU does it. QEMU's own
layout has the type ZERO there, so the same pages give another digest. Files whose digest depends
on the loader are refused.

Sources: QEMU, `backends/igvm.c` and `target/i386/sev.c`; microsoft/igvm, `measurement/snp.rs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.launch import CPUID, SECRETS, VMSA, VMSA_GPA, LaunchDigest
from appliance.errors import ImageError
from appliance.imaging.igvm import headers
from appliance.imaging.igvm.headers import (
    PAGE,
    Directive,
    IgvmFile,
    PageData,
    ParameterArea,
    ParameterInsert,
    ProcessorState,
)
from appliance.imaging.predict.firmware import FOUR_GIB

UNMEASURED = 4  # PAGE_TYPE: the address counts, and the content does not
_KINDS = {headers.SECRETS: SECRETS, headers.CPUID: CPUID, headers.CPUID_XF: CPUID}
_FEATURES_AT, _RDX_AT, _SNP_ACTIVE = 0x3B0, 0x310, 1


@dataclass(frozen=True)
class Launch:
    """The launch on SEV-SNP. `pages` are those of the guest in their order."""

    pages: tuple[PageData, ...]
    save_areas: tuple[bytes, ...]
    policy: int | None
    digest: bytes

    @property
    def guest_features(self) -> int:
        """The features that the virtual CPUs start with (SEV_FEATURES)."""
        return int.from_bytes(self.save_areas[0][_FEATURES_AT:_FEATURES_AT + 8], "little")

    @property
    def signature(self) -> int:
        """The signature of the CPU model, which EDX holds at reset."""
        return int.from_bytes(self.save_areas[0][_RDX_AT:_RDX_AT + 8], "little")

    def firmware(self) -> bytes:
        """The firmware: the content of the pages that end at 4 GiB, without a gap."""
        content = {each.gpa: each.content or bytes(PAGE) for each in self.pages if each.kind == headers.NORMAL}
        start = FOUR_GIB
        while start - PAGE in content:
            start -= PAGE
        return b"".join(content[gpa] for gpa in range(start, FOUR_GIB, PAGE))


def launch(file: IgvmFile, what: str = "IGVM file") -> Launch:
    """Return the launch on SEV-SNP. Raises ImageError for a file without one, or whose digest
    loaders do not agree on."""
    platform = next((each for each in file.platforms if each.kind == headers.SEV_SNP), None)
    if platform is None:
        raise _bad(what, "it is not for SEV-SNP")
    if platform.version != headers.PLATFORM_VERSION:
        raise _bad(what, f"version {platform.version} of SEV-SNP, expected {headers.PLATFORM_VERSION}")
    digest, pages, places = LaunchDigest(), [], set[int]()
    states: list[ProcessorState] = []
    for page in _in_order(file.directives, platform.mask, what):
        if isinstance(page, ProcessorState):
            states.append(page)
        elif page.gpa in places:
            raise _bad(what, "a page of the guest stands twice")
        else:
            places.add(page.gpa)
            pages.append(page)
            _measure(digest, page)
    for state in states:
        digest.page(VMSA, state.gpa, hashlib.sha384(state.content).digest())
    _check_states(states, what)
    policies = {each.policy for each in file.policies if each.mask & platform.mask}
    if len(policies) > 1:
        raise _bad(what, "it has more than one guest policy")
    return Launch(tuple(pages), tuple(each.content for each in states), next(iter(policies), None), digest.value)


def _bad(what: str, why: str) -> ImageError:
    return ImageError(f"{what}: {why}", code="image-igvm",
                      hint="write one: appliance image export DIR --igvm OVMF.amdsev.fd -o FILE")


def _in_order(directives: tuple[Directive, ...], mask: int, what: str) -> Iterator[PageData | ProcessorState]:
    """Yield pages and states for a platform. The pages of a parameter area are unmeasured.

    QEMU gathers page data and adds parameter areas at once, so that an area behind a page would
    be measured before it. States are measured last, wherever they stand.
    """
    areas: dict[int, int] = {}
    seen: set[int] = set()
    last = 0
    for each in directives:
        if isinstance(each, ParameterArea):
            if each.index in seen:
                raise _bad(what, f"parameter area {each.index} stands twice")
            seen.add(each.index)
            areas[each.index] = each.size
        elif isinstance(each, PageData | ProcessorState | ParameterInsert) and each.mask & mask:
            place = (ParameterInsert, PageData, ProcessorState).index(type(each))
            if place < last:
                raise _bad(what, "loaders measure its parts in different orders: parameter areas come before page "
                           "data, and states of virtual CPUs behind them")
            last = place
            if isinstance(each, ParameterInsert):
                yield from _inserted(each, areas, what)
            else:
                yield each


def _inserted(insert: ParameterInsert, areas: dict[int, int], what: str) -> Iterator[PageData]:
    if insert.index not in areas:
        raise _bad(what, f"parameter area {insert.index} is inserted and not declared, or inserted twice")
    for at in range(0, areas.pop(insert.index), PAGE):
        yield PageData(insert.gpa + at, insert.mask, unmeasured=True)


def _measure(digest: LaunchDigest, page: PageData) -> None:
    if page.kind in _KINDS:
        digest.page(_KINDS[page.kind], page.gpa)
    elif page.unmeasured:
        digest.page(UNMEASURED, page.gpa)
    else:
        digest.content(page.gpa, page.content or bytes(PAGE))


def _check_states(states: list[ProcessorState], what: str) -> None:
    """Check the demands of QEMU and KVM: every virtual CPU from 0 on, at one address, with the same
    features."""
    if not 1 <= len(states) <= MAX_VCPUS or [each.index for each in states] != list(range(len(states))):
        raise _bad(what, f"it needs the states of virtual CPUs from 0 on, at most {MAX_VCPUS}, each once and in "
                   "order")
    if any(each.gpa != VMSA_GPA for each in states):
        raise _bad(what, f"a virtual CPU's state is not at {VMSA_GPA:#x}, where KVM puts it")
    features = {each.content[_FEATURES_AT:_FEATURES_AT + 8] for each in states}
    if len(features) != 1 or not int.from_bytes(next(iter(features)), "little") & _SNP_ACTIVE:
        raise _bad(what, "its virtual CPUs have different features, or none of SEV-SNP")
