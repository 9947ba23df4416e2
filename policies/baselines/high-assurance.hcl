# Rules where an answer must show as little as this version can: production, and these. They cost speed:
# docs/concepts/privacy.md measures it. `appliance check POLICY --against` this file tells how each rule stands;
# docs/reference/baselines.md has the form.

baseline {
  name     = "high-assurance"
  summary  = "Deployments whose traffic, machines and times are watched by someone able."
  includes = ["production.hcl"]
}

rule "no-hyper-threading" {
  field    = "tee.evidence.smt"
  equals   = false
  reason   = "A neighbour's thread on the same core shares caches and counters."
  controls = ["soc2 CC6.1"]
  attack   = "CounterSEVeillance"
}

rule "known-machines" {
  field    = "tee.evidence.machines"
  present  = true
  reason   = "A key that was taken from any one chip in the world would do without a list."
  controls = ["nist-800-53 CM-8"]
  attack   = "TEE.fail"
}

rule "machines-rollback" {
  field    = "tee.evidence.machines.min_version"
  at_least = 1
  reason   = "An old list would bring back a machine that was taken off it."
  controls = ["nist-800-53 CM-8"]
  attack   = "A key that was taken from another chip"
}

rule "ciphertext-hiding" {
  field    = "tee.evidence.sev_snp.guest_ciphertext_hiding"
  equals   = true
  reason   = "Ciphertext in memory tells which values repeat."
  controls = ["nist-800-53 SC-28"]
  attack   = "CipherLeaks and later ciphertext side channels"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "no-power-meter" {
  field    = "tee.evidence.sev_snp.guest_rapl_disabled"
  equals   = true
  reason   = "Power consumption tells what is computed."
  controls = ["nist-800-53 SC-28"]
  attack   = "PwrLeak"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "signed-image" {
  field    = "tee.evidence.sev_snp.id_key_sha384"
  present  = true
  reason   = "The builder's signature stands in the launch, and not in files beside it only."
  controls = ["nist-800-53 CM-14"]

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "image-rollback" {
  field    = "tee.evidence.sev_snp.min_guest_svn"
  at_least = 1
  reason   = "An older image of the same builder is refused."
  controls = ["nist-800-53 SI-7"]

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "revocation-age" {
  field    = "tee.evidence.sev_snp.max_revocation_age"
  at_most  = "60d"
  reason   = "AMD's list is in force for up to a year."
  controls = ["nist-800-53 SI-2"]
  attack   = "A list of revoked certificates that is withheld, or old"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "tdx-modules" {
  field    = "tee.evidence.tdx.mr_seam"
  present  = true
  severity = "warning"
  reason   = "The site says which TDX modules it has read."
  controls = ["nist-800-53 SI-7"]
  attack   = "A TDX module that is not Intel's, or was set back"

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "weights-unread" {
  field    = "model.streaming_decrypt"
  equals   = true
  reason   = "Few weights are ever in the clear, whatever the memory."
  controls = ["nist-800-53 SC-28"]
}

rule "no-guesses-shown" {
  field    = "model.speculation"
  one_of   = ["hidden", "off"]
  reason   = "How well a text is guessed shows in the times of its tokens."
  controls = ["soc2 C1.1"]
  attack   = "Fingerprints of speculation"
}

rule "no-prefix-cache" {
  field    = "model.prefix_cache"
  present  = false
  reason   = "A prompt that was asked before is answered sooner, and that can be seen."
  controls = ["soc2 C1.1"]
  attack   = "Timing of a shared prefix cache"
}

rule "no-sessions" {
  field    = "model.session_persistence"
  equals   = false
  reason   = "No text is kept, not even sealed."
  controls = ["soc2 C1.2", "gdpr 5(1)(e)"]
}

rule "models-stay" {
  field    = "model.load"
  equals   = "always"
  reason   = "Nobody changes what is loaded while it serves."
  controls = ["nist-800-53 CM-3"]
}

rule "cadence" {
  field    = "privacy.timing_padding.cadence"
  at_least = "1ms"
  reason   = "Numbers and times of passes tell of answers."
  controls = ["soc2 C1.1"]
  attack   = "Whisper Leak"
}

rule "sizes-padded" {
  field    = "privacy.size_padding"
  at_least = "4KiB"
  reason   = "Sizes of answers tell what a conversation is about."
  controls = ["soc2 C1.1"]
  attack   = "Whisper Leak"
}

rule "counts-rounded" {
  field    = "privacy.token_count_rounding"
  at_least = 64
  reason   = "Exact counts in metrics tell of single requests."
  controls = ["soc2 C1.1"]
}

rule "nothing-to-set" {
  field    = "service.operator_may_set"
  present  = false
  reason   = "Nothing is decided after the measurement."
  controls = ["nist-800-53 CM-3"]
  attack   = "Variables and settings that come after the measurement"
}

rule "post-quantum" {
  field    = "service.tls.key_exchange"
  equals   = "post-quantum"
  reason   = "Traffic that is recorded today may be read later."
  controls = ["nist-800-53 SC-8"]
}

rule "short-keys" {
  field    = "service.listen.rotation"
  at_most  = "12h"
  reason   = "A key that leaks is of use for half a day at most."
  controls = ["nist-800-53 SC-13"]
}

rule "strict" {
  field    = "service.strict"
  equals   = true
  reason   = "A request that asks for what has no effect is refused, and not guessed at."
  controls = ["nist-800-53 SI-7"]
}

rule "places-later" {
  field    = "audit.receipt_position"
  equals   = "later"
  reason   = "A receipt's place at once tells how many requests others sent."
  controls = ["soc2 C1.1"]
}

rule "three-approvers" {
  field    = "approvals.approver"
  count    = 3
  reason   = "Two of three can approve while one is away."
  controls = ["soc2 CC8.1"]
}

rule "two-witnesses" {
  field    = "audit.witness"
  count    = 2
  reason   = "One witness that is down, or bought, does not hide a rollback."
  controls = ["nist-800-53 AU-9"]
  attack   = "An older state disk"
}
