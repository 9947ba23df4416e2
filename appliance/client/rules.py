"""The rules in words, those that must hold before the word "verified" is used, and the attack that
a failure looks like.

The rules' names are those of the modules that judge them, and of no one attack:
docs/reference/verify.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MEANINGS: Mapping[str, str] = MappingProxyType({
    # what a verifier holds
    "approvals": "as many people approved the policy as it requires",
    "measurements": "the measurements are the builder's",
    "gate": "the image that the measurements name begins with the gate",
    "measured-policy": "the policy that is part of the measured image is this one",
    # the connection
    "certificate": "the connection's certificate is in its time and signed by its own key",
    "certificate-evidence": "evidence in the certificate is about the certificate's own key",
    "channel": "the connection is the one that the evidence is about",
    "tls-key": "the TLS key of this connection is the one in the evidence",
    "nonce": "the evidence was made for this nonce, so after it was chosen",
    # every platform
    "signature": "the report is signed, up to a root that is pinned here",
    "statement": "the report binds the statement on policy, models, keys and nonce",
    "platform": "the platform is one that the policy allows",
    "policy": "the appliance enforces this policy",
    "launch-policy": "the machine was launched with this policy",
    "models": "the models loaded are those of the policy, no more and no less",
    "self-test": "the boot's self-test gave the expected results",
    "measurement": "the machine runs an image that the measurements name",
    # SEV-SNP
    "product": "the chip is of a product line that the policy allows",
    "root-seed": "the keys of the chip's product line are known to its chips alone",
    "alias-check": "memory was checked for aliases, if the policy demands it",
    "tsme": "memory outside of guests is encrypted, if the policy demands it",
    "ecc": "memory has error correction, if the policy demands it",
    "iommu-write-safe": "the IOMMU's writes are safe, if the policy demands it",
    "signing-key": "the report is signed by a kind of key that the policy allows",
    "vmpl": "the report was asked for from a privilege level that the policy allows",
    "guest-svn": "the guest's security version is high enough",
    "guest-policy": "the guest policy has no bit that is unknown here",
    "debug": "the host may not debug, that is read, the guest",
    "migration": "no migration agent may move the guest",
    "smt": "hyper-threading is as the policy demands",
    "single-socket": "the guest is on one socket, if the policy demands it",
    "cxl": "no CXL device holds guest memory, unless the policy allows it",
    "aes256-xts": "memory encryption has 256 bits, if the policy demands it",
    "rapl": "the power meter is off, if the policy demands it",
    "ciphertext-hiding": "the host cannot read ciphertext, if the policy demands it",
    "tcb-reported": "the firmware that signed is new enough",
    "tcb-current": "the firmware that runs is new enough",
    "tcb-committed": "the firmware cannot be rolled back below what is new enough",
    "tcb-launch": "the firmware was new enough when the guest was launched",
    "api": "the firmware's interface is new enough",
    "revocation": "no certificate of the chain is revoked, by a list that is in force",
    # TDX
    "mrtd": "the TD was launched with a firmware that the measurements name",
    "sept-ve-disable": "the host cannot inject exceptions on memory access",
    "td-attributes": "the TD has no attribute that is unknown here",
    "service-td": "the TD is bound to no service TD that the policy does not accept",
    "mrseam": "the TDX module is one that the policy accepts",
    "tee-tcb-svn": "the TDX module's security versions are high enough",
    "xfam": "the TD has no CPU feature that the policy does not allow",
    "seam": "the TDX module is Intel's production module",
    "tcb-status": "Intel's judgement of the platform is one that the policy allows",
    "advisories": "no advisory is open that the policy does not accept",
    "evaluation-number": "Intel's judgement is recent enough by its number",
    "collateral-age": "Intel's judgement is recent enough",
    # TPM
    "ak-origin": "the attestation key is held by a TPM: by a pinned root, your enrolment, or activation",
    "ek-activation": "the attestation key is in the same TPM as an endorsement key that its maker certified",
    "ak-bound-in-hardware": "an SEV-SNP or TDX report binds the attestation key",
    "ak-attributes": "the attestation key signs nothing but what its TPM says",
    "event-log": "the event log gives the quoted registers",
    "pcrs-covered": "the quote covers the registers that the policy demands",
    "golden-pcrs": "firmware and machine are of a recorded shape",
})

# The attack that a failure of a rule looks like. The name of the attack is said first.
ATTACKS: Mapping[str, str] = MappingProxyType({
    "nonce": "replay", "tls-key": "splice", "certificate-evidence": "splice", "channel": "splice",
    "tcb-reported": "downgrade", "tcb-current": "downgrade", "tcb-committed": "downgrade", "tcb-launch": "downgrade",
    "tcb-status": "downgrade", "api": "downgrade", "guest-svn": "downgrade", "evaluation-number": "downgrade",
    "tee-tcb-svn": "downgrade", "service-td": "another TD that may see or move this one",
    "debug": "debug", "vmpl": "wrong VMPL", "measurement": "wrong image or vCPU count", "mrtd": "wrong image",
    "policy": "another deployment", "launch-policy": "another deployment", "measured-policy": "another deployment",
    "models": "other models", "revocation": "stale revocation list", "collateral-age": "stale collateral",
    "golden-pcrs": "wrong firmware", "ek-activation": "another TPM", "approvals": "not approved",
})

# The advice on a rule that must hold and could not be checked.
HINTS: Mapping[str, str] = MappingProxyType({
    "measurement": "give the image's measurements: --measurements FILE --builder-key KEY",
    "mrtd": "give the image's measurements: --measurements FILE --builder-key KEY",
    "revocation": "fetch AMD's list into the folder of --collateral: appliance collateral fetch, or GET "
                  "https://kdsintf.amd.com/vcek/v1/LINE/crl (LINE: Milan, Genoa, Turin; of a VLEK /vlek/v1/LINE/crl); "
                  "or do without: --without-revocation",
    "ak-origin": "a key that nobody vouches for is anybody's: enrol it, and name it by --ak, or have "
                 "the TPM challenged: --ek-roots; --unsafe-any-ak is for tests",
    "ek-activation": "evidence that was kept cannot be challenged: verify the running machine by its URL and keep the "
                     "result (--ear), or judge the file by keys that you enrolled: --ak without --ek-roots",
})

# Rules that say nothing new, or that the policy did not ask for: not shown to people where they
# were not checked.
_QUIET = frozenset({"report-data", "host-data", "family-id", "image-id", "mrconfigid", "mrowner", "mrownerconfig",
                    "xfam", "mrseam", "tee-tcb-svn", "id-key", "author-key", "api", "rtmr0", "rtmr3"})
_REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "simulated": (), "sev-snp": ("measurement", "launch-policy"), "tdx": ("mrtd", "rtmr1", "rtmr2", "launch-policy"),
    "tpm": ("measurement", "ak-origin")})


def required(platform: str, *, online: bool, revocation: bool, activation: bool = False,
             any_ak: bool = False) -> tuple[str, ...]:
    """The rules that must hold, and not only go unchecked, for a good verdict on a platform's
    evidence.

    `activation`: a TPM had to be challenged. `any_ak`: its key needs nobody to vouch for it, for
    tests.
    """
    rules = tuple(rule for rule in _REQUIRED.get(platform, ()) if not any_ak or rule != "ak-origin")
    if platform == "tpm" and activation:
        rules = ("ek-activation", *rules)
    if platform != "simulated" and online:
        rules += ("nonce", "tls-key", "certificate")
    if platform == "sev-snp" and revocation:
        rules += ("revocation",)
    return rules


def meaning(rule: str) -> str:
    """A rule in words; a register by its number."""
    if rule in MEANINGS:
        return MEANINGS[rule]
    return f"{rule.upper()} is as the measurements say" if rule.startswith(("pcr", "rtmr")) else rule


def is_quiet(rule: str) -> bool:
    """Whether a rule that was not checked is no news to a person."""
    return rule in _QUIET
