"""The plan of a change: what differs, who refuses, how much is at stake, and the order of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from appliance.attestation.case.measurements import Measurements
from appliance.client.rollout import images, refusals
from appliance.client.rollout.images import ImageChange
from appliance.client.rollout.refusals import Denial
from appliance.codec.printable import quantity
from appliance.errors import PolicyError
from appliance.platforms import TPM
from appliance.policy import Loaded
from appliance.policy.changes import compare
from appliance.policy.changes.compare import FieldChange
from appliance.signed import tenants
from appliance.signed.tenants import TenantList

Risk = Literal["none", "same or tighter", "looser", "breaks"]
GIVEN_LIST = "this tenant list"
EXIT_CODES: dict[Risk, int] = {"none": 0, "same or tighter": 1, "looser": 3, "breaks": 4}


@dataclass(frozen=True)
class Materials:
    """All that is compared; None of a thing that was not given for both."""

    old: Loaded
    new: Loaded
    lists: tuple[bytes, bytes] | None = None  # signed lists of tenants
    measured: tuple[Measurements, Measurements] | None = None


@dataclass(frozen=True)
class RolloutPlan:
    """The whole prediction."""

    digests: tuple[str, str]
    changes: tuple[FieldChange, ...]
    tenants: tuple[FieldChange, ...] = ()
    images: tuple[ImageChange, ...] = ()
    refusals: tuple[Denial, ...] = ()
    steps: tuple[str, ...] = ()
    outlived: bool = field(default=False)  # the state disk's log or its sessions end

    @property
    def risk(self) -> Risk:
        """The worst that happens: something is lost or does not start by itself; something is
        looser; something is another; nothing."""
        found = (*self.changes, *self.tenants)
        if self.outlived:
            return "breaks"
        if any(each.direction == "loosens" for each in found):
            return "looser"
        return "same or tighter" if found or self.images or self.digests[0] != self.digests[1] else "none"

    def as_json(self) -> dict[str, Any]:
        """Return the plan for JSON output."""
        return {"old_sha384": self.digests[0], "new_sha384": self.digests[1], "risk": self.risk,
                "exit_code": EXIT_CODES[self.risk], "changes": [each.as_json() for each in self.changes],
                "tenants": [each.as_json() for each in self.tenants],
                "images": [each.as_json() for each in self.images],
                "refusals": [each.as_json() for each in self.refusals], "steps": list(self.steps)}


def make(given: Materials) -> RolloutPlan:
    """Return the plan. Raises PolicyError for a list that is not in form."""
    old, new = given.old, given.new
    found = tuple(compare.changes(old.policy, new.policy))
    differing, refused = _lists(given)
    refused = (*refusals.of_policies(old, new), *refused, *_images(given))
    return RolloutPlan(
        (old.digest.hex(), new.digest.hex()), found, differing,
        tuple(images.compare(*given.measured)) if given.measured else (), refused,
        tuple(_steps(given, refused, bool(differing))), any(_ends(each) for each in refused))


def _images(given: Materials) -> Iterator[Denial]:
    if given.measured is not None:
        yield from images.refusals(*given.measured, given.new.digest.hex())


def _ends(refusal: Denial) -> bool:
    """Whether no step of the usual order mends it: a disk whose key is another, or a list that is
    refused as it was given."""
    return refusal.breaks and refusal.of in (GIVEN_LIST, images.OTHER_IMAGE, refusals.OTHER_KEY, refusals.SEALED_KEY)


def _lists(given: Materials) -> tuple[tuple[FieldChange, ...], tuple[Denial, ...]]:
    """Return what differs between both lists, and who refuses the new one."""
    if given.lists is None:
        return (), ()
    before, after = (_unsigned(data) for data in given.lists)
    found = []
    try:
        tenants.parse(given.lists[1], given.new.policy)
    except PolicyError as error:
        found.append(Denial("the boot of NEW", GIVEN_LIST, (error.code,), error.hint or error.summary,
                            breaks=True))
    if before.version is not None and after.version is not None and after.version <= before.version:
        found.append(Denial("a running appliance", "this tenant list, by push", ("tenants-version",),
                            f"sign it as version {before.version + 1} or later"))
    return (*compare.of_tenants(before.tenants, after.tenants), *_key_ends(before, after)), tuple(found)


def _key_ends(before: TenantList, after: TenantList) -> Iterator[FieldChange]:
    """Return the keys that end at another time than before."""
    kept = {digest for each in before.tenants for digest in each.api_key_sha256}
    for tenant in after.tenants:
        for digest in sorted(kept.intersection(tenant.api_key_sha256)):
            old, new = before.ends.get(digest), after.ends.get(digest)
            if old != new:
                yield FieldChange(f'tenants.tenant "{tenant.name}".expires "{digest}"', "tenants.tenant.expires",
                                  _time(old), _time(new),
                                  "loosens" if new is None or (old is not None and new > old) else "tightens",
                                  "When the key ends; absent: never.")


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):{tenants.TIME}}"


def _unsigned(data: bytes) -> TenantList:
    """Return a list whose signature is judged elsewhere."""
    value = tenants.decode(data, {"format", "list", "signature"})
    form = next((each for each in tenants.VERSIONS if each.name == value["format"]), None)
    if form is None:
        raise tenants.wrong("its format is not known")
    return tenants.check(value["list"], form)


def _steps(given: Materials, refused: tuple[Denial, ...], listed: bool) -> Iterator[str]:
    """Yield what to do, in an order in which something serves all the time, as far as possible."""
    old, new = given.old, given.new
    if old.digest == new.digest and not given.measured:
        if listed:
            yield f"push the list: appliance tenants push URL LIST --policy {new.path}"
        return
    yield f"appliance check {new.path}"
    if new.policy.approvals is not None and old.digest != new.digest:
        yield f"{quantity(new.policy.approvals.required, 'approval')}: appliance approve {new.path} --key KEY.pem"
    for each in refused:
        if "list" in each.of and each.breaks:
            yield f"{each.mended_by} ({each.of} is refused: {', '.join(each.rules)})"
    if given.measured is None:
        yield (f"if the policy is part of the image: appliance image build {new.path} -o DIR, and appliance image "
               "predict DIR; if it is given at launch, the image stays")
    else:
        yield "the builder signs NEW's measurements: appliance image predict DIR"
    yield from _broker_first(given)
    yield ("give clients both for a stated time, with the addresses of OLD and NEW: appliance connect URL URL "
           f"--policy {old.path} {_next(given)} --until TIME; they move over when NEW is verified")
    yield f"start a machine under NEW beside OLD, and verify it: appliance verify URL --policy {new.path}"
    if new.policy.state is not None:
        yield from _disk(old, new)
    yield (f"end OLD by SIGTERM; requests in progress have {old.policy.service.drain_timeout_ms // 1000} s to end "
           "(service.drain_timeout)")
    yield ("take OLD out: the broker's rules for it end at their own until; if it must never serve again, revoke it "
           "by the release log, which running clients read: appliance image release LOG --key KEY")
    yield f"when the time is over, clients hold NEW only: appliance connect URL --policy {new.path}"
    yield f"keep {old.path.name}, its approvals and its measurements: receipts and packs of its time need them"


def _next(given: Materials) -> str:
    """Return how a client names what follows: another policy, another image, or both."""
    policy = "" if given.old.digest == given.new.digest else f"--next {given.new.path}"
    image = "" if given.measured is None else "--next-measurements MEASUREMENTS"
    return " ".join(filter(None, (policy, image)))


def _broker_first(given: Materials) -> Iterator[str]:
    """Yield how a broker comes to accept both: its rules of today end at a time, others follow."""
    if not refusals.released(given.new.policy):
        return
    policy = "" if given.old.digest == given.new.digest else f" --policy {given.new.path}"
    image = "" if given.measured is None else " --measurements MEASUREMENTS"
    yield ("the broker accepts both until a time, when its rules for OLD end: python -m examples.broker overlap "
           f"broker.toml --until TIME{policy}{image}")
    yield ("a running broker takes the file at SIGHUP, all of it or nothing, and its log says which: kill -HUP PID. "
           "Another broker than the reference one: add a rule for NEW beside the one for OLD")


def _disk(old: Loaded, new: Loaded) -> Iterator[str]:
    """Yield what a state disk asks for: one machine at a time has it."""
    if old.policy.state is None or new.policy.state is None:
        return
    if new.policy.state.key.provider == TPM.name:
        yield "name the image that follows before OLD ends: appliance image successor MEASUREMENTS"
    yield ("the state disk is one machine's at a time: give the machine under NEW an empty one, or end OLD first and "
           "be without service for one boot")
