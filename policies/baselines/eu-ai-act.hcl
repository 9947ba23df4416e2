# Rules for high-risk systems under Regulation (EU) 2024/1689: production, and these. They cover keeping of records
# (Articles 12, 18, 19 and 26); docs/reference/controls.md says what remains. `appliance check POLICY --against`
# this file tells how each rule stands; docs/reference/baselines.md has the form.

baseline {
  name     = "eu-ai-act"
  summary  = "High-risk systems under the EU AI Act."
  includes = ["production.hcl"]
}

rule "events-recorded" {
  field    = "audit.sink"
  equals   = "state"
  reason   = "Events are recorded automatically, over the system's lifetime, where nobody alters them."
  controls = ["eu-ai-act-12 12(1)"]
}

rule "records-six-months" {
  field    = "privacy.retention.audit"
  at_least = "192d"
  absent   = "passes"
  reason   = "Logs are kept for six months at least (184 days). Records are sealed in 24 periods, so that the oldest may go a period early."
  controls = ["eu-ai-act-records 19(1)", "eu-ai-act-records 26(6)"]
}

rule "changes-traceable" {
  field    = "audit.receipts"
  equals   = true
  reason   = "An answer can be traced to the model and the policy that gave it, before and after a modification."
  controls = ["eu-ai-act-12 12(2)(a)"]
}

rule "monitoring" {
  field    = "privacy.auditor_key"
  present  = true
  reason   = "Whoever monitors the system has the details for it, and nobody else."
  controls = ["eu-ai-act-12 12(2)(b)", "eu-ai-act-12 12(2)(c)"]
}

rule "dated" {
  field    = "audit.timestamp_authority"
  present  = true
  reason   = "A log without a trusted time does not show when something happened."
  controls = ["eu-ai-act-12 12(1)"]
}

rule "checkpoints-often" {
  field    = "audit.checkpoint_interval"
  at_most  = "5m"
  reason   = "Logs that can be lost are not kept."
  controls = ["eu-ai-act-records 19(1)"]
}

rule "provider-known" {
  field    = "model.publisher"
  present  = true
  reason   = "The provider of the model signs it: documentation belongs to a file, and not to a name."
  controls = ["eu-ai-act-records 18(1)"]
}

rule "changes-approved" {
  field    = "approvals.required"
  at_least = 2
  reason   = "A change of the system is a decision of people, on record."
  controls = ["eu-ai-act-records 26(5)"]
}
