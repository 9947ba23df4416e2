# Rules for protected health information under the HIPAA security rule: production, and these. A policy that meets
# them is no proof of compliance: docs/reference/controls.md says what a control asks for beyond. `appliance check
# POLICY --against` this file tells how each rule stands; docs/reference/baselines.md has the form.

baseline {
  name     = "hipaa"
  summary  = "Protected health information, under 45 CFR part 164."
  includes = ["production.hcl"]
}

rule "records-six-years" {
  field    = "privacy.retention.audit"
  at_least = "2288d"
  absent   = "passes"
  reason   = "Documentation is kept for six years (2192 days). Records are sealed in 24 periods, so that the oldest may go a period early."
  controls = ["hipaa-administrative 164.316(b)(2)(i)"]
}

rule "redact-identifiers" {
  field    = "privacy.redaction.detectors"
  has      = ["date-of-birth", "email", "national-id", "phone"]
  reason   = "Identifiers of people do not reach the model, nor leave it."
  controls = ["hipaa 164.312(a)(1)", "gdpr 5(1)(c)"]
}

rule "redact-both-ways" {
  field    = "privacy.redaction.apply_to"
  has      = ["answer", "prompt"]
  reason   = "A model can repeat in an answer what it was told."
  controls = ["hipaa 164.312(a)(1)", "gdpr 25"]
}

rule "drop-user-fields" {
  field    = "privacy.redaction.fields"
  has      = ["metadata", "user"]
  severity = "warning"
  reason   = "Clients put names of patients into fields that no model reads."
  controls = ["gdpr 5(1)(c)"]
}

rule "sessions-end" {
  field    = "privacy.retention.sessions"
  at_most  = "24h"
  reason   = "Text that was kept for speed ends with the day."
  controls = ["hipaa 164.312(a)(2)(iii)", "gdpr 5(1)(e)"]

  when {
    field  = "model.session_persistence"
    equals = true
  }
}

rule "detail-for-auditors" {
  field    = "privacy.auditor_key"
  present  = true
  reason   = "Details for an examination are readable to the auditor, and to nobody else."
  controls = ["hipaa 164.312(b)"]
}

rule "records-dated" {
  field    = "audit.timestamp_authority"
  present  = true
  reason   = "The host owns the clock: somebody else dates the records."
  controls = ["hipaa 164.312(c)(2)", "nist-800-53 AU-8"]
}

rule "checkpoints-often" {
  field    = "audit.checkpoint_interval"
  at_most  = "5m"
  reason   = "At most five minutes of records can be lost."
  controls = ["hipaa 164.312(c)(1)"]
}

rule "sizes-padded" {
  field    = "privacy.size_padding"
  at_least = "1KiB"
  reason   = "Sizes of answers on the wire tell what a conversation is about."
  controls = ["hipaa 164.312(e)(1)"]
  attack   = "Whisper Leak"
}

rule "times-padded" {
  field    = "privacy.timing_padding.first_token"
  at_least = "50ms"
  reason   = "Times of tokens on the wire tell what a conversation is about."
  controls = ["hipaa 164.312(e)(1)"]
  attack   = "Whisper Leak"
}

rule "post-quantum" {
  field    = "service.tls.key_exchange"
  equals   = "post-quantum"
  severity = "warning"
  reason   = "Health records stay sensitive for longer than today's key exchange may."
  controls = ["hipaa 164.312(e)(2)(ii)"]
}
