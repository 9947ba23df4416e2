"""A portable reference: verifiers derive from it what `image predict` predicts, and no more than it measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sevsnpmeasure import guest, vcpu_types

from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import DerivedMeasurements, Measurements
from appliance.attestation.google import endorsement
from appliance.attestation.measured import launch, portable, second
from appliance.attestation.measured.second import TdxRow
from appliance.attestation.tpm.judging import registers
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import Verifier
from appliance.client.reference import read_measurements
from appliance.client.verdict import FIRMWARE_PROVED, NOT_MET, VERIFIED, Verdict
from appliance.codec.canonical import canonical
from appliance.errors import ForgedEvidenceError, ImageError, MalformedEvidenceError, PolicyError
from appliance.imaging import reference
from appliance.imaging.predict import golden, predict
from appliance.policy import load
from tests.fuzz import driver, measurements_fuzz
from tests.support import expected, fake_google, fake_image, references, rows
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_firmware import SNP_SECTIONS, firmware
from tests.support.fake_google import FakeGoogle
from tests.support.fake_intel import FakeIntel

Change = Callable[[dict[str, Any]], object]
BUILDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = BUILDER.public_key().public_bytes_raw()
GOLDEN = golden.of("q35-1cpu", "ab" * 32, {0: bytes(32), 7: b"\x07" * 32})
MODELS = ("EPYC-v4", "EPYC-Milan", "EPYC-Genoa")
SHAPES = (1, 3, 7, 64, 512)
AMD = FakeAmd("Genoa")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image, and a firmware beside it."""
    path = fake_image.write(tmp_path_factory.mktemp("image") / "out")
    (path.parent / "fw").write_bytes(firmware())
    return path


def _made(folder: Path, **changed: Any) -> DerivedMeasurements:
    file = folder.parent / "fw"
    return reference.make(reference.ReferenceOptions(**{
        "folder": folder, "firmware": (file,), "cpu_models": MODELS, "tdx_firmware": (file,), "golden": (GOLDEN,),
        "key": BUILDER, "nitro": True, **changed}))


def _predicted(folder: Path) -> Measurements:
    file = folder.parent / "fw"
    return predict.predict(predict.Options(folder, predict.Snp(file, SHAPES, MODELS), file, (GOLDEN,), nitro=True))


def _edited(found: Measurements, change: Change) -> bytes:
    value = json.loads(found.to_json())
    change(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_derived_rows_are_the_predicted_ones(folder: Path) -> None:
    """SEV-SNP in fifteen shapes, TDX in both orders of pages, the registers of a TPM and of a NitroTPM."""
    found, known = _made(folder), _predicted(folder)
    assert len(SHAPES) * len(MODELS) == len(known.snp_rows())
    for row in known.snp_rows():
        assert (row,) == found.launched(bytes.fromhex(row.launch_digest)).snp_rows()
    assert known.sev_snp_digests() <= found.sev_snp_digests()
    assert 512 * len(MODELS) == len(found.sev_snp_digests())
    assert known.tdx_rows() == found.tdx_rows()
    assert (known.tdx_mrtds(), known.tdx_rtmrs()) == (found.tdx_mrtds(), found.tdx_rtmrs())
    assert (known.tpm, known.nitro_prediction()) == (found.tpm, found.nitro_prediction())
    assert (known.image, known.build, known.policy_sha384) == (found.image, found.build, found.policy_sha384)
    assert fake_image.ROOT_HASH == found.reference.root_hash


def test_the_derivation_is_what_another_implementation_computes(folder: Path) -> None:
    """sev-snp-measure, on the files of the image."""
    found = _made(folder)
    for vcpus, model in ((2, "EPYC-v4"), (5, "EPYC-Milan"), (96, "EPYC-Genoa")):
        (row,) = found.launched(_digest(folder, vcpus, model)).snp_rows()
        assert (vcpus, model, True) == (row.vcpus, row.cpu_model, row.image)


def test_one_file_one_text_one_signature(folder: Path) -> None:
    """Canonical, in a domain of its own, and read by the one loader of measurements."""
    found, path = _made(folder), folder / reference.OUTPUT
    assert found.to_json() == path.read_bytes()
    known = read_measurements(path, builder_key=PUBLIC)
    assert (found, PUBLIC) == (known.measurements, known.signed_by)
    data = path.read_bytes()
    assert BUILDER.sign(b"appliance/reference/v1\n" + data) == (folder / f"{reference.OUTPUT}.sig").read_bytes()
    crossed = BUILDER.sign(b"appliance/measurements/v2\n" + data)
    with pytest.raises(MalformedEvidenceError, match="signed as"):
        measurements.signed(data, crossed, PUBLIC)
    flipped = bytes((data[0] ^ 1,)) + data[1:]
    with pytest.raises(ForgedEvidenceError):
        measurements.signed(flipped, BUILDER.sign(b"appliance/reference/v1\n" + data), PUBLIC)
    _made(folder, key=None)
    assert not (folder / f"{reference.OUTPUT}.sig").exists()


BROKEN: list[tuple[str, Change]] = [
    # a firmware that measures nothing of what it starts
    ("kernel hashes", lambda d: d["sev_snp"]["firmware"][0]["sections"].pop()),
    ("kernel hashes", lambda d: d["sev_snp"]["firmware"][0].update(hashes_gpa=0x900C00)),
    ("kernel hashes", lambda d: d["sev_snp"]["firmware"][0]["sections"][-1].update(size=0x2000)),
    ("does not fit", lambda d: d["sev_snp"]["firmware"][0].update(hashes_gpa=0x810FFF)),
    ("too large", lambda d: d["sev_snp"]["firmware"][0]["sections"][0].update(size=1 << 27)),
    ("too large", lambda d: d["sev_snp"]["firmware"][0].update(reset_eip=0)),
    ("whole pages", lambda d: d["sev_snp"]["firmware"][0]["sections"][0].update(size=1)),
    ("unknown kind", lambda d: d["sev_snp"]["firmware"][0]["sections"][0].update(kind=9)),
    ("firmware", lambda d: d["sev_snp"].update(firmware=[])),
    # shapes that nobody can derive
    ("'EPYC-Next'; known: EPYC", lambda d: d["sev_snp"].update(cpu_models=["EPYC-Next"])),
    ("max_vcpus", lambda d: d["sev_snp"].update(max_vcpus=513)),
    ("max_vcpus", lambda d: d["sev_snp"].update(max_vcpus=0)),
    # rows that say what only a derivation may say
    ("covers the firmware alone", lambda d: d.update(firmware_rows=[rows.snp(fake.LAUNCH)])),
    ("only the firmware", lambda d: d.update(firmware_rows=[rows.snp(rows.OLD, vmm="ec2", covers=rows.WHOLE)])),
    ("are derived", lambda d: d.update(tdx=[rows.tdx(fake.MRTD, None, *fake.RTMRS[1:3], None)])),
    ("are derived", lambda d: d.update(tdx=[rows.tdx(fake.MRTD, source="recorded")])),
    ("are derived", lambda d: d["tdx"][0].update(rtmr=[None, "00" * 48, None, None])),
    # an image whose root nothing fixes
    ("root hash", lambda d: _command_line(d, "console=ttyS0")),
    ("root hash", lambda d: _command_line(d, f"{fake_image.CMDLINE} roothash={'11' * 32}")),
    ("root hash", lambda d: _command_line(d, "roothash=" + "11" * 31)),
    ("not the command line", lambda d: d["boot"].update(command_line=fake_image.CMDLINE + " x")),
    ("no more and no less", lambda d: d["boot"]["sections"].pop(".linux")),
    ("no more and no less", lambda d: d["boot"]["sections"].update({".dtb": d["boot"]["kernel"]})),
    ("appliance.efi is absent", lambda d: d["image"].pop("appliance.efi")),
    ("command_line", lambda d: d["boot"].update(command_line="x\n")),
    ("nitro", lambda d: d.update(nitro=1)),
    ("Extra", lambda d: d.update(more=1)),
    ("ascending order", lambda d: d["golden"].append(d["golden"][0])),
    ("format", lambda d: d.update(format="appliance/reference/v2")),
    ("valid tuple", lambda d: d.update(format="appliance/measurements/v2")),
]


def _command_line(value: dict[str, Any], text: str) -> None:
    value["boot"]["command_line"] = text
    value["boot"]["sections"][".cmdline"] = portable.events.ContentDigests.of(text.encode()).model_dump()


@pytest.mark.parametrize(("said", "change"), BROKEN)
def test_a_reference_says_no_more_than_it_measures(folder: Path, said: str, change: Change) -> None:
    """Each rule, broken once."""
    with pytest.raises(MalformedEvidenceError, match=said):
        measurements.parse(_edited(_made(folder), change))


@pytest.mark.parametrize("change", [
    lambda d: d["boot"]["kernel"].update(sha256="00" * 32, sha384="00" * 48),
    lambda d: d["boot"]["program"].update(sha256="00" * 32, sha384="00" * 48),
    lambda d: d["boot"]["partitions"].update(sha256="00" * 32, sha384="00" * 48),
    lambda d: d["boot"]["initrd"].update(sha256="00" * 32, sha384="00" * 48),
    lambda d: d["boot"]["sections"][".osrel"].update(sha256="00" * 32, sha384="00" * 48),
    lambda d: _command_line(d, f"{fake_image.CMDLINE} quiet")])
def test_each_part_of_the_image_counts(folder: Path, change: Change) -> None:
    """Another part: other registers of a TPM, and of a TD."""
    found = _made(folder)
    other = measurements.parse(_edited(found, change))
    assert found.tpm_pcrs() != other.tpm_pcrs()
    assert found.tdx_rtmrs() != other.tdx_rtmrs()


def test_the_program_counts_in_a_launch(folder: Path) -> None:
    """QEMU measures appliance.efi as the kernel: of another one no launch digest stays."""
    found = _made(folder)
    other = measurements.parse(_edited(found, lambda d: d["image"].update({"appliance.efi": "00" * 32})))
    assert not found.sev_snp_digests() & other.sev_snp_digests()


def _on_snp(folder: Path, known: Measurements, **fields: Any) -> Verdict:
    with fake.snp(folder, AMD) as (server, policy):
        server.attestor._provider.fields = fields  # type: ignore[union-attr]
        return fake.verifier(policy, known=known, roots=Roots(amd=AMD.roots),
                             collateral=Collateral(crls=[AMD.crl()])).verify(server.url)


def _digest(folder: Path, vcpus: int, model: str) -> bytes:
    """The launch digest of a shape, by sev-snp-measure."""
    digest: bytes = guest.snp_calc_launch_digest(
        vcpus, vcpu_types.CPU_SIGS[model], str(folder.parent / "fw"), str(folder / "appliance.efi"), "", "", 1, "")
    return digest


def test_a_launch_of_a_shape_that_no_row_names_is_verified(folder: Path, tmp_path: Path) -> None:
    """Seven vCPUs, which a file of rows for 1, 2 and 4 refuses; the verdict says of which shape it was."""
    digest = _digest(folder, 7, "EPYC-Milan")
    found = _on_snp(tmp_path, _made(folder), measurement=digest)
    assert VERIFIED == found.status, found
    told = next(each.detail for each in found.findings if each.rule == "measurement")
    assert "7 vCPUs of EPYC-Milan" in told


@pytest.mark.parametrize(("changed", "said"), [
    ({"cpu_models": ("EPYC-v4",)}, "of 7 vCPUs of EPYC-Milan, and the reference allows 1 to 512 vCPUs of EPYC-v4"),
    ({"max_vcpus": 4}, "it is of 7 vCPUs of EPYC-Milan, and the reference allows 1 to 4 vCPUs"),
    ({"firmware": ()}, "no SEV-SNP launch is derived")])
def test_a_shape_that_is_not_allowed_is_refused_by_name(folder: Path, tmp_path: Path, changed: dict[str, Any],
                                                        said: str) -> None:
    """It could be derived, and the builder does not allow it."""
    digest = _digest(folder, 7, "EPYC-Milan")
    found = _on_snp(tmp_path, _made(folder, **changed), measurement=digest)
    assert NOT_MET == found.status, found
    assert said in next(each.detail for each in found.findings if each.rule == "measurement")


def test_a_launch_that_no_shape_gives_is_refused(folder: Path, tmp_path: Path) -> None:
    """Another image, or another firmware: the refusal says what was tried."""
    found = _on_snp(tmp_path, _made(folder), measurement=b"\x01" * 48)
    assert (NOT_MET, "evidence-measurement") == (found.status, found.code), found
    told = next(each.detail for each in found.findings if each.rule == "measurement")
    assert "no launch of this image has it, with 1 to 512 vCPUs of any known CPU model" in told


def test_a_firmware_alone_stays_a_firmware(folder: Path, tmp_path: Path) -> None:
    """A cloud's launch beside the statement proves no image; nor does a derived digest that such a row names."""
    digest = _digest(folder, 4, "EPYC-v4")
    for value, row in ((rows.OLD, rows.snp(rows.OLD, vmm="ec2", source="ec2")), (digest, rows.snp(digest, vmm="gce"))):
        known = measurements.parse(_edited(_made(folder), lambda d, row=row: d.update(firmware_rows=[row])))
        assert value not in known.sev_snp_digests() | known.launched(value).sev_snp_digests()
        assert FIRMWARE_PROVED == _on_snp(tmp_path, known, measurement=value).status


@pytest.mark.parametrize(("change", "status"), [
    ({}, VERIFIED), ({"rtmr1": b"\x01" * 48}, NOT_MET), ({"rtmr2": b"\x01" * 48}, NOT_MET),
    ({"mr_td": b"\x01" * 48}, NOT_MET)])
def test_a_td_is_judged_by_derived_registers(folder: Path, tmp_path: Path, change: dict[str, bytes],
                                             status: str) -> None:
    """MRTD of the firmware, RTMR 1 and RTMR 2 of the image: all of one row."""
    known, intel = _made(folder), FakeIntel()
    row = (known.tdx_rows() or ())[0]
    fields = {"mr_td": bytes.fromhex(row.mrtd), "rtmr1": bytes.fromhex(row.rtmr[1] or ""),
              "rtmr2": bytes.fromhex(row.rtmr[2] or ""), **change}
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    policy, roots = load(path), Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest, fields), policy), tmp_path)
    try:
        found = fake.verifier(path, known=known, roots=roots, collateral=intel.collateral()).verify(server.url)
    finally:
        server.stop()
    assert status == found.status, found


def test_a_tpm_is_judged_by_derived_registers(folder: Path) -> None:
    """Each register that the files give, and the golden ones, which are rows."""
    known = _made(folder)
    values = {number: next(iter(accepted)) for number, accepted in known.tpm_pcrs().items()}
    values |= {int(name): bytes.fromhex(value) for name, value in GOLDEN.pcrs.items()}
    assert {"holds"} == {each.outcome for each in registers.judge(values, known)}
    wrong = registers.judge({**values, 11: bytes(32)}, known)
    assert ["pcr11"] == [each.rule for each in wrong if each.outcome == "fails"]


def test_firmware_that_measures_no_kernel_is_refused(folder: Path) -> None:
    """As `image predict` refuses it."""
    (folder.parent / "bare").write_bytes(firmware(snp=SNP_SECTIONS[:-1]))
    with pytest.raises(ImageError) as caught:
        _made(folder, firmware=(folder.parent / "bare",))
    assert "image-kernel-hashes" == caught.value.code
    with pytest.raises(ImageError, match="i486"):
        _made(folder, cpu_models=("i486",))


def test_google_s_endorsed_firmware_goes_in(folder: Path, tmp_path: Path) -> None:
    """MRTDs with their security version, in both forms of RTMR 1; launches of SEV-SNP cover the firmware alone."""
    google = FakeGoogle()
    (tmp_path / "fw.binarypb").write_bytes(google.endorsement(snp={4: rows.OLD}))
    (tmp_path / "GCE-cc-tcb-root_1.crt").write_bytes(google.root.public_bytes(Encoding.DER))
    command = ["image", "reference", str(folder), "--gce-endorsement", str(tmp_path / "fw.binarypb"), "--unsafe-root",
               str(tmp_path / "GCE-cc-tcb-root_1.crt"), "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}"]
    assert 0 == main(command)
    found = measurements.parse((folder / reference.OUTPUT).read_bytes())
    assert 0 == main([*command[:1], "predict", *command[2:]])
    known = measurements.parse((folder / predict.OUTPUT).read_bytes())
    assert known.tdx_rows()
    assert set(known.tdx_rows() or ()) == set(found.tdx_rows() or ())
    assert known.snp_rows() == found.snp_rows()
    assert frozenset() == found.sev_snp_digests()


@pytest.mark.parametrize(("given", "svn", "changed", "status", "failed"), [
    (True, 3, {}, VERIFIED, []), (True, 4, {}, NOT_MET, ["gce-svn"]), (False, 3, {}, NOT_MET, ["mrtd", "gce-svn"]),
    (True, 3, {"rtmr1": b"\x01" * 48}, NOT_MET, ["rtmr1"])])
def test_google_s_firmware_is_known_on_the_day(folder: Path, tmp_path: Path, given: bool, svn: int,
                                               changed: dict[str, bytes], status: str, failed: list[str]) -> None:
    """A reference of before, and an endorsement of today: its MRTD with the image's own registers, and no others."""
    google, intel, known = FakeGoogle(), FakeIntel(), _made(folder)
    document = tmp_path / "fw.binarypb"
    document.write_bytes(google.endorsement())
    (tmp_path / endorsement.ROOT_FILE).write_bytes(google.root.public_bytes(Encoding.DER))
    row = (known.tdx_rows() or ())[0]
    fields = {"mr_td": fake_google.MRTD, "rtmr1": bytes.fromhex(row.rtmr[1] or ""),
              "rtmr2": bytes.fromhex(row.rtmr[2] or ""), **changed}
    path = fake.write_policy(tmp_path, "tdx", evidence=f"gce {{\n min_svn = {svn}\n }}")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest, fields), policy), tmp_path)
    own = {"gce_endorsement": document} if given else {}
    judge = Verifier.from_files(path, folder / reference.OUTPUT, builder_key=f"ed25519:{PUBLIC.hex()}", roots=Roots(
        intel=intel.pins["root"], intel_der=intel.pins["root_der"], others={"gce": google.pin}), **own)
    try:
        found = Verifier(replace(judge.reference, collateral=intel.collateral()), clock=lambda: NOW).verify(server.url)
    finally:
        server.stop()
    assert (status, failed) == (found.status, [each.rule for each in found.findings if each.outcome == "fails"]), found
    assert judge.reference.known is not None
    assert known.to_json() == judge.reference.known.measurements.to_json()
    assert given == any("a firmware by" in each.detail for each in found.findings if each.rule == "measurements")
    until = judge.reference.known.firmware_until
    assert given == (until is not None)
    if until is not None:  # a client that runs for longer than the certificate of Google's
        later = [judge.reference.findings(until + timedelta(seconds=passed)) for passed in (0, 1)]
        assert [[], ["measurements"]] == [[each.rule for each in some if each.outcome == "fails"] for some in later]


def test_an_endorsement_sets_no_register_free(folder: Path) -> None:
    """RTMR 0, which the builder says for a shape of Google's, stays; the security version is the endorsement's."""
    known = _made(folder)
    strict = TdxRow.model_validate(rows.endorsed(
        fake_google.MRTD, b"\x02" * 48, None, None, None, svn=2, covers=second.FIRMWARE))
    made = DerivedMeasurements.of(known.reference.model_copy(update={"tdx": (strict,)}))
    theirs = TdxRow.model_validate(rows.endorsed(fake_google.MRTD, svn=3))
    [found] = {(row.rtmr[0], row.svn) for row in made.endorsed((theirs,), ()).tdx_rows() or ()}
    assert ("02" * 48, 3) == found


def test_an_endorsement_is_checked(folder: Path, tmp_path: Path) -> None:
    """By its signature, and only beside a reference; a launch of SEV-SNP by it covers the firmware alone."""
    google, known = FakeGoogle(), _made(folder)
    document, path = tmp_path / "fw.binarypb", fake.write_policy(tmp_path, "tdx", evidence="")
    document.write_bytes(google.endorsement(by="other"))
    (tmp_path / endorsement.ROOT_FILE).write_bytes(google.root.public_bytes(Encoding.DER))
    roots = Roots(others={"gce": google.pin})
    with pytest.raises(ForgedEvidenceError):
        Verifier.from_files(path, folder / reference.OUTPUT, measurements_unsigned=True, gce_endorsement=document,
                            roots=roots)
    document.write_bytes(google.endorsement())
    _predicted(folder)
    with pytest.raises(PolicyError) as caught:
        Verifier.from_files(path, folder / predict.OUTPUT, measurements_unsigned=True, gce_endorsement=document)
    assert "endorsement-alone" == caught.value.code
    judge = Verifier.from_files(path, folder / reference.OUTPUT, measurements_unsigned=True, roots=roots,
                                gce_endorsement=document)
    assert judge.reference.known is not None
    said = judge.reference.known.measurements
    assert known.sev_snp_digests() == said.sev_snp_digests()
    for digest in fake_google.LAUNCH.values():
        assert [False] == [row.image for row in said.launched(digest).snp_rows()]


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`image reference` says what is derived and what is not; `verify` takes the file by either option."""
    assert 0 == main(["image", "reference", str(folder), "--firmware", str(folder.parent / "fw"), "--max-vcpus", "8",
                      "--cpu-model", "EPYC-v4,EPYC-Genoa"])
    said = capsys.readouterr().out
    for each in (fake_image.ROOT_HASH, "derived for 1 to 8 vCPUs of EPYC-v4 or EPYC-Genoa", "not derived: no --tdx",
                 "NOT SIGNED"):
        assert each in said
    assert 0 == main(["image", "reference", str(folder), "--json"])
    assert json.loads((folder / reference.OUTPUT).read_bytes()) == json.loads(capsys.readouterr().out)
    pem, policy = tmp_path / "builder.pem", fake.write_policy(tmp_path, "sev-snp")
    pem.write_bytes(BUILDER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert 0 == main(["image", "reference", str(folder), "--key", str(pem), "--firmware", str(folder.parent / "fw"),
                      "--tdx-firmware", str(folder.parent / "fw")])
    assert "reference.json: signed" in capsys.readouterr().out
    (tmp_path / "e.json").write_text("{}")
    assert 1 == main(["verify", str(tmp_path / "e.json"), "--policy", str(policy), "--reference",
                      str(folder / reference.OUTPUT), "--builder-key", f"ed25519:{PUBLIC.hex()}"])
    for option in ("--reference", "--measurements"):
        assert 1 == main(["verify", str(tmp_path / "e.json"), "--policy", str(policy), option,
                          str(folder / reference.OUTPUT), "--measurements-unsigned"])


def test_any_bytes_are_refused_or_have_one_form(folder: Path) -> None:
    """Mutations of a reference, as of other measurements."""
    data = _made(folder).to_json()
    _, finding = driver.run(measurements_fuzz.fuzz, [data, *measurements_fuzz.seeds()], seconds=0, seed=1, least=600)
    assert finding is None


def test_the_specification_shows_a_file_that_parses() -> None:
    """The example in docs/formats/portable-reference.md, written canonically, and the values that it gives."""
    text = (expected.ROOT / "docs/formats/portable-reference.md").read_text("utf-8")
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    found = measurements.parse(canonical(example))
    assert canonical(references.document()) == found.to_json()
    for vcpus in (1, 2):
        assert any(found.launched(digest).snp_rows()[0].vcpus == vcpus and digest.hex() in text
                   for digest in found.sev_snp_digests())
    for values in ({found.tdx_rtmrs()[number] for number in (1, 2)} | {found.tpm_pcrs()[number] for number in (4, 11)}):
        assert all(value.hex() in text for value in values)


def test_all_models_of_qemu_are_known() -> None:
    """What sev-snp-measure knows can be derived."""
    assert set(launch.MODELS) == set(vcpu_types.CPU_SIGS)
    assert second.WHOLE != second.FIRMWARE


def test_measurements_and_a_reference_are_one_or_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """The second would come in the place of the first without a word."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", "https://127.0.0.1:1", "--policy", "p", "--measurements", "a", "--reference", "b"])
    assert 2 == ended.value.code
    assert "--measurements and --reference are given: keep one" in capsys.readouterr().err


def test_which_numbers_of_processors_a_host_may_choose(folder: Path) -> None:
    """Those that are predicted, or all up to the reference's most: `accept` tries another one where there is one."""
    known = _made(folder)
    shapes = known.reference.sev_snp
    assert shapes is not None
    assert [True, True, False] == [known.allows(count) for count in (1, shapes.max_vcpus, shapes.max_vcpus + 1)]
    predicted = fake.measured(launch=(b"\1" * 48, b"\2" * 48))
    assert [True, True, False] == [predicted.allows(count) for count in (1, 2, 3)]
