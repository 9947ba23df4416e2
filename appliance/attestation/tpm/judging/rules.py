"""The rules of a TPM that no other platform has, in words."""

from __future__ import annotations

from appliance.attestation.case.rule import Rule

RULES = (
    Rule("ak-origin", "the attestation key is held by a TPM: by a pinned root, your enrolment, or activation",
         "instance-identity",
         hint="a key that nobody vouches for is anybody's: enrol it, and name it by --ak, or have the TPM "
              "challenged: --ek-roots; --unsafe-any-ak is for tests"),
    Rule("ek-activation", "the attestation key is in the same TPM as an endorsement key that its maker certified",
         "instance-identity", attack="another TPM",
         hint="evidence that was kept cannot be challenged: verify the running machine by its URL and keep the "
              "result (--ear), or judge the file by keys that you enrolled: --ak without --ek-roots"),
    Rule("ak-bound-in-hardware", "an SEV-SNP or TDX report binds the attestation key", "instance-identity"),
    Rule("paravisor", "the policy names the paravisor below the guest, which holds its TPM", "executables",
         attack="another paravisor", quiet=True),
    Rule("paravisor-report", "the hardware's report on the paravisor is of this moment", "hardware"),
    Rule("ak-attributes", "the attestation key signs nothing but what its TPM says", "instance-identity"),
    Rule("event-log", "the event log gives the quoted registers", "executables"),
    Rule("pcrs-covered", "the quote covers the registers that the policy demands", "executables"),
    Rule("golden-pcrs", "firmware and machine are of a recorded shape", "executables", attack="wrong firmware"),
)
