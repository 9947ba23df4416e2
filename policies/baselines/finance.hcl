# Rules for banks and insurers: production, and these. `appliance check POLICY --against` this file tells how each
# rule stands; docs/reference/baselines.md has the form.

baseline {
  name     = "finance"
  summary  = "Accounts, payments and advice."
  includes = ["production.hcl"]
}

rule "three-approvers" {
  field    = "approvals.approver"
  count    = 3
  reason   = "Two of three can approve while one is away, and no two are one team."
  controls = ["soc2 CC8.1", "nist-800-53 CM-3"]
}

rule "no-hyper-threading" {
  field    = "tee.evidence.smt"
  equals   = false
  reason   = "A neighbour's thread on the same core shares caches and counters."
  controls = ["soc2 CC6.1"]
  attack   = "StackWarp"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "known-machines" {
  field    = "tee.evidence.machines"
  present  = true
  reason   = "A key that was taken from any one chip in the world would do without a list."
  controls = ["nist-800-53 CM-8", "soc2 CC6.4"]
  attack   = "TEE.fail"
}

rule "redact-accounts" {
  field    = "privacy.redaction.detectors"
  has      = ["credit-card", "iban"]
  reason   = "Numbers of cards and accounts do not reach the model, nor leave it."
  controls = ["soc2 C1.1", "gdpr 5(1)(c)"]
}

rule "redact-secrets" {
  field    = "privacy.redaction.detectors"
  has      = ["secret"]
  reason   = "Keys that are pasted into prompts do not reach the model."
  controls = ["soc2 CC6.7"]
}

rule "records-seven-years" {
  field    = "privacy.retention.audit"
  at_least = "2668d"
  absent   = "passes"
  reason   = "Records of decisions are kept for seven years (2557 days); the oldest of 24 periods may go early."
  controls = ["nist-800-53 AU-11"]
}

rule "records-dated" {
  field    = "audit.timestamp_authority"
  present  = true
  reason   = "The host owns the clock: somebody else dates the records."
  controls = ["nist-800-53 AU-8"]
}

rule "two-witnesses" {
  field    = "audit.witness"
  count    = 2
  severity = "warning"
  reason   = "One witness that is down, or bought, does not hide a rollback."
  controls = ["nist-800-53 AU-9"]
  attack   = "An older state disk"
}

rule "every-answer-signed" {
  field    = "audit.receipts"
  equals   = true
  reason   = "A dispute about an answer is settled by its receipt."
  controls = ["nist-800-53 AU-10", "soc2 PI1.1"]
}

rule "daily-budget" {
  field    = "limits.tokens_per_day"
  present  = true
  reason   = "A key that was stolen costs a day's budget at most."
  controls = ["soc2 A1.1"]
}

rule "sizes-padded" {
  field    = "privacy.size_padding"
  at_least = "1KiB"
  reason   = "Sizes of answers on the wire tell what a question was about."
  controls = ["soc2 C1.1", "nist-800-53 SC-8"]
  attack   = "Whisper Leak"
}

rule "times-padded" {
  field    = "privacy.timing_padding.first_token"
  at_least = "100ms"
  reason   = "Times of tokens on the wire tell what a question was about."
  controls = ["soc2 C1.1"]
  attack   = "Whisper Leak"
}
