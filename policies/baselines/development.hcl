# Rules for policies that run on a desk: nothing in them may be taken for production, or need its keys. `appliance
# check POLICY --against` this file tells how each rule stands; docs/reference/baselines.md has the form.

baseline {
  name    = "development"
  summary = "Policies for a desk, on the simulated platform."
}

rule "simulated" {
  field    = "tee.platforms"
  only     = ["simulated"]
  reason   = "A development policy on hardware would look as trustworthy as a production one."
  controls = ["soc2 CC8.1"]
}

rule "loopback" {
  field    = "service.listen.address"
  one_of   = ["127.0.0.1", "::1"]
  absent   = "passes"
  reason   = "Nothing protects prompts on a simulated platform: only this machine may send any."
  controls = ["soc2 CC6.6"]
}

rule "no-production-keys" {
  field    = "model.key.provider"
  none_of  = ["broker"]
  reason   = "A broker's keys are for machines that prove themselves; a simulated one cannot."
  controls = ["soc2 CC6.1"]
}

rule "no-production-tenants" {
  field    = "tenants.authority"
  present  = false
  reason   = "A list of real tenants does not belong on a machine whose operator reads all."
  controls = ["soc2 CC6.3"]
}

rule "no-sessions" {
  field    = "model.session_persistence"
  equals   = false
  severity = "warning"
  reason   = "Nothing of a test stays on a disk."
  controls = ["soc2 C1.2"]
}

rule "padding-tried" {
  field    = "privacy.timing_padding"
  present  = true
  severity = "warning"
  reason   = "What production pads is tried with padding, or its times surprise."
}

rule "small" {
  field    = "limits.concurrent_requests"
  at_most  = 32
  severity = "warning"
  reason   = "A laptop that takes a fleet's load says nothing about a fleet."
}
