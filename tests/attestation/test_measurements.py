"""Measurements files: one strict form, the builder's signature, and what a TPM's registers must show by them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case import measurements
from appliance.attestation.case.event_log import Event
from appliance.attestation.snp.judging import judge as snp_judge
from appliance.attestation.tdx.judging import judge as tdx_judge
from appliance.attestation.tpm.judging import registers
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError
from tests.fuzz import driver, measurements_fuzz
from tests.support import expected
from tests.support.environment import untraced
from tests.support.expected import digest, document, image, values

Change = Callable[[dict[str, Any]], object]
BUILDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = BUILDER.public_key().public_bytes_raw()


def _written(change: Change | None = None) -> bytes:
    """The file as json.dumps writes it: for these values, all ASCII, that is RFC 8785's form too."""
    value = document()
    if change is not None:
        change(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_a_file_is_read_and_written_alike() -> None:
    """The canonical text gives an object, and the object the text."""
    found = measurements.parse(_written())
    assert (_written(), image()) == (found.to_json(), found)
    assert {bytes.fromhex(digest(f"launch {count}", 384)) for count in (1, 2)} == found.sev_snp_digests()
    assert {bytes.fromhex(digest("mrtd", 384))} == found.tdx_mrtds()
    assert {2: {bytes.fromhex(digest("rtmr2", 384))}, 3: {bytes(48)}} == found.tdx_rtmrs()
    assert {2, 3, 4, 5, 6, 9, 11, 12, 13} == set(found.tpm_pcrs())


BROKEN: list[tuple[str, Change]] = [
    ("format", lambda d: d.update(format="appliance/measurements/v3")),
    ("Extra", lambda d: d.update(more=1)),
    ("required", lambda d: d.pop("policy_sha384")),
    ("nested field is absent", lambda d: d["build"].pop("kernels_sha384")),
    ("policy_sha384", lambda d: d.update(policy_sha384="AB" * 48)),
    ("policy_sha384", lambda d: d.update(policy_sha384="ab" * 32)),
    ("image", lambda d: d["image"].update({"../x": "00" * 32})),
    ("launch_digest", lambda d: d["sev_snp"][0].update(launch_digest="00" * 32)),
    ("vcpus", lambda d: d["sev_snp"][0].update(vcpus=0)),
    ("vcpus", lambda d: d["sev_snp"][0].update(vcpus=True)),
    ("vmm", lambda d: d["sev_snp"][0].update(vmm="other")),
    ("guest_features", lambda d: d["sev_snp"][0].update(guest_features="0x01")),
    ("block", lambda d: d["sev_snp"][1]["id_block"].update(block="AAAA")),
    ("auth", lambda d: d["sev_snp"][1]["id_block"].update(auth="A" * 5461 + "B==")),
    ("page_order", lambda d: d["tdx"][0].update(page_order="any")),
    ("rtmr", lambda d: d["tdx"][0].update(rtmr=[None] * 3)),
    ("unverified", lambda d: d["tdx"][0].update(unverified=["two\nlines"])),
    ("bank", lambda d: d["tpm"].update(bank="sha1")),
    ("predicted PCRs", lambda d: d["tpm"]["pcrs"].pop("13")),
    ("predicted PCRs", lambda d: d["tpm"]["pcrs"].update({"8": ["00" * 32]})),
    ("are zero", lambda d: d["tpm"]["pcrs"].update({"12": ["11" * 32]})),
    ("are zero", lambda d: d["tpm"]["pcrs"].update({"13": ["00" * 32, "11" * 32]})),
    ("at least 1", lambda d: d["tpm"]["pcrs"].update({"4": []})),
    ("PCR 0 and PCR 7", lambda d: d["tpm"]["golden"][0]["pcrs"].pop("0")),
    ("ascending", lambda d: d["tpm"]["golden"].reverse()),
    ("ascending", lambda d: d["tpm"]["golden"].append(d["tpm"]["golden"][0])),
    ("pcr", lambda d: d["tpm"]["events"][0].update(pcr=24)),
    ("kind", lambda d: d["tpm"]["events"][0].update(kind=-1)),
]


@pytest.mark.parametrize(("said", "change"), BROKEN)
def test_what_is_not_the_format_is_refused(said: str, change: Change) -> None:
    """Each rule of the specification, broken once."""
    with pytest.raises(MalformedEvidenceError, match=said):
        measurements.parse(_written(change))


@pytest.mark.parametrize("text", [
    b"", b"[]", b"{}", b"null", b"\xff", b"NaN", b"[" * 100_000, b" " * (measurements.MAX_BYTES + 1),
    _written() + b"\n", b" " + _written(), _written().replace(b'"bank":"sha256"', b'"bank":"sha256","bank":"sha256"'),
    _written().replace(b'"vcpus":1', b'"vcpus":1.0'), _written().replace(b'"qemu"', b'"\\u0071emu"')])
def test_another_text_for_the_same_value_is_refused(text: bytes) -> None:
    """Spaces, escapes, other numbers, repeated keys: one value has one text, so its hash means the value."""
    with pytest.raises(MalformedEvidenceError):
        measurements.parse(text)


def test_the_builder_signs_the_bytes() -> None:
    """The signature is Ed25519 over domain and file, and is checked before anything is parsed."""
    data = _written()
    signature = measurements.sign(data, BUILDER)
    assert BUILDER.sign(b"appliance/measurements/v1\n" + data) == signature
    assert image() == measurements.signed(data, signature, PUBLIC)
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    for wrong in ((data + b" ", signature, PUBLIC), (data, signature[:-1], PUBLIC), (data, bytes(64), PUBLIC),
                  (data, signature, other), (data, signature, b"short"), (data, BUILDER.sign(data), PUBLIC)):
        with pytest.raises(ForgedEvidenceError) as caught:
            measurements.signed(*wrong)
        assert "measurements-signature" == caught.value.code


def test_what_does_not_parse_is_not_signed() -> None:
    """A builder's signature never stands under something else."""
    with pytest.raises(MalformedEvidenceError):
        measurements.sign(b"{}", BUILDER)


@pytest.mark.parametrize("shape", ["q35-1cpu", "q35-2cpu"])
def test_a_machine_that_runs_the_image_is_accepted(shape: str) -> None:
    """Every predicted register, and the golden pair of a recorded machine."""
    assert {"holds"} == {finding.outcome for finding in registers.judge(values(shape), image())}


@pytest.mark.parametrize("number", [0, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13])
def test_evidence_without_a_register_is_refused(number: int) -> None:
    """Each register for itself: absent fails, and so does another value."""
    absent, other = values(), values()
    del absent[number]
    other[number] = bytes(31) + b"\x01"
    rule = "golden-pcrs" if number in (0, 7) else f"pcr{number}"
    for wrong in (absent, other):
        failed = [finding.rule for finding in registers.judge(wrong, image()) if finding.outcome == "fails"]
        assert [rule] == failed


def test_the_policy_in_force_is_in_pcr_15() -> None:
    """Where the policy is known, PCR 15 must hold it, by the formula of policy-digest.md."""
    policy = bytes(range(48))
    stands = hashlib.sha256(b"appliance/policy-host-data/v1\n" + policy).digest()
    right = values() | {15: hashlib.sha256(bytes(32) + stands).digest()}
    assert {"holds"} == {each.outcome for each in registers.judge(right, image(), policy)}
    for wrong in (values(), values() | {15: bytes(32)}, values() | {15: stands}):
        failed = [each.rule for each in registers.judge(wrong, image(), policy) if each.outcome == "fails"]
        assert ["pcr15"] == failed


def test_golden_values_of_two_machines_do_not_mix() -> None:
    """PCR 0 of one recorded shape with PCR 7 of another is no recorded shape."""
    mixed = values() | {7: bytes.fromhex(digest("q35-2cpu 7"))}
    assert ["golden-pcrs"] == [each.rule for each in registers.judge(mixed, image()) if each.outcome == "fails"]


def test_an_image_without_a_prediction_accepts_nothing() -> None:
    """No TPM part, no golden machine, no SEV-SNP or TDX launch: none of them accepts anything."""
    bare = image().model_copy(update={"tpm": None, "sev_snp": (), "tdx": ()})
    assert ["fails"] == [each.outcome for each in registers.judge(values(), bare)]
    assert frozenset() == snp_judge.expect(bare).measurements == tdx_judge.expect(bare).mr_tds
    tpm = image().tpm
    assert tpm is not None
    unrecorded = image().model_copy(update={"tpm": tpm.model_copy(update={"golden": ()})})
    assert ["golden-pcrs"] == [each.rule for each in registers.judge(values(), unrecorded) if each.outcome == "fails"]


def test_events_give_the_registers() -> None:
    """The replay of predicted events, computed by hand here."""
    tpm = image().tpm
    assert tpm is not None
    first = hashlib.sha256(bytes(32) + bytes.fromhex(digest("call"))).digest()
    second = hashlib.sha256(first + bytes.fromhex(digest("separator"))).digest()
    assert second == registers.replay(tpm.events)[4]


def test_a_log_tells_which_event_departs() -> None:
    """A register that fails names its first event that is not the predicted one; others say nothing of the log."""
    def told(number: int, *log: Event) -> str:
        wrong = values() | {number: bytes(31) + b"\x01"}
        found = {each.rule: each for each in registers.judge(wrong, image(), log=log)}
        assert [f"pcr{number}"] == [each.rule for each in found.values() if each.outcome == "fails"]
        assert [] == [each.rule for each in found.values() if each.outcome == "holds" and "event" in each.detail]
        return found[f"pcr{number}"].detail

    def event(register: int, what: str, kind: int = 4) -> Event:
        return Event(register, kind, {"sha256": bytes.fromhex(digest(what))}, b"")

    good = [event(4, "ignored", kind=3), event(4, "call"), event(4, "separator"), event(11, "section")]
    assert f"; event 1 differs: separator: found {digest('x')}, expected {digest('separator')}" in told(
        4, *good[:2], event(4, "x"), good[3])
    assert "; event 1 is absent: separator" in told(4, good[1], good[3])
    assert "; events more than predicted: 1" in told(4, *good, event(4, "call"))
    for unspoken in (told(4), told(4, *good), told(4, good[0], good[3]), told(12, *good, event(12, "command line"))):
        assert "event" not in unspoken


@untraced()
def test_fuzzing_finds_nothing() -> None:
    """A little of what `make soak` does for minutes; every altered byte is refused or is another value."""
    data = _written()
    for at in range(0, len(data), 7):
        with contextlib.suppress(AttestationError):
            assert image() != measurements.parse(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1:])
    _, finding = driver.run(measurements_fuzz.fuzz, measurements_fuzz.seeds(), seconds=0, seed=1, least=2500)
    assert finding is None


def test_the_specification_shows_a_file_that_parses() -> None:
    """The example in docs/formats/measurements.md, written canonically, is a measurements file."""
    text = (expected.ROOT / "docs/formats/measurements.md").read_text("utf-8")
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    measurements.parse(json.dumps(example, sort_keys=True, separators=(",", ":")).encode())
