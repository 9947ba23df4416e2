# Rules for every deployment that people rely on. `appliance check POLICY --against` this file tells how each rule
# stands; docs/reference/baselines.md has the form.

baseline {
  name    = "production"
  summary = "Every deployment that people rely on."
}

rule "approvals" {
  field    = "approvals.required"
  at_least = 2
  reason   = "No single person puts a policy in force."
  controls = ["soc2 CC8.1", "nist-800-53 CM-3"]
}

rule "schema" {
  field    = "appliance.schema"
  equals   = 2
  reason   = "Rules of this file are on fields that schema 1 does not have, or binds less tightly."
  controls = ["nist-800-53 CM-3"]
}

rule "hardware" {
  field    = "tee.platforms"
  only     = ["sev-snp", "tdx"]
  reason   = "Nothing else keeps prompts from the machine's operator."
  controls = ["soc2 CC6.1", "nist-800-53 SC-28", "hipaa 164.312(a)(1)"]
  attack   = "A vTPM, or anybody's TPM, in the place of hardware"
}

rule "no-debug" {
  field    = "tee.evidence.debug"
  equals   = false
  reason   = "The host can read a guest that it may debug."
  controls = ["soc2 CC6.1", "nist-800-53 AC-3"]
  attack   = "Debugging switched on by the guest policy"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "no-debug-tdx" {
  field    = "tee.evidence.debug"
  equals   = false
  reason   = "The host can read a TD that it may debug."
  controls = ["soc2 CC6.1", "nist-800-53 AC-3"]
  attack   = "Debug, profiling and unknown attributes of a TD"

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "no-migration" {
  field    = "tee.evidence.migration"
  equals   = false
  reason   = "A migration agent holds the guest's memory key."
  controls = ["nist-800-53 AC-3"]
  attack   = "Migration agents"
}

rule "vmpl" {
  field    = "tee.evidence.vmpl"
  equals   = 0
  reason   = "A report of a lower privilege level is not the appliance's own."
  controls = ["nist-800-53 SI-7"]
  attack   = "A report that the host asked for, or a lower privilege level"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "no-milan" {
  field    = "tee.evidence.sev_snp.products"
  none_of  = ["milan"]
  reason   = "Software on the host extracts Milan's root seed."
  controls = ["soc2 CC6.8", "nist-800-53 SI-2"]
  attack   = "MilanLaunchy and BadFuse"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "vcek-or-cloud" {
  field    = "tee.evidence.sev_snp.signing_keys"
  only     = ["vcek"]
  severity = "warning"
  reason   = "A VLEK names no chip, so that no list of machines and no revocation of one chip reaches it."
  controls = ["nist-800-53 CM-8"]

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "report-version" {
  field    = "tee.evidence.sev_snp.min_report_version"
  at_least = 5
  reason   = "Older reports show no mitigations."
  controls = ["nist-800-53 SI-2"]

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "committed" {
  field    = "tee.evidence.sev_snp.committed_is_current"
  equals   = true
  reason   = "Firmware that is not committed can be set back after the verdict."
  controls = ["nist-800-53 SI-2"]
  attack   = "Firmware set back after a guest was verified"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "alias-check" {
  field    = "tee.evidence.sev_snp.alias_check"
  equals   = true
  reason   = "Memory modules can lie about their size."
  controls = ["nist-800-53 SI-6"]
  attack   = "BadRAM"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "tcb-floors" {
  field    = "tee.evidence.sev_snp.min_tcb"
  count    = 1
  reason   = "Without floors, firmware of any age will do."
  controls = ["soc2 CC7.1", "nist-800-53 SI-2"]
  attack   = "Bugs in SNP firmware"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "tcb-firmware" {
  field    = "tee.evidence.sev_snp.min_tcb.snp"
  at_least = 4
  reason   = "The lowest version of SNP firmware that bulletins of any line accept; `check` names the lines for which it is too low."
  controls = ["soc2 CC7.1", "nist-800-53 SI-2"]
  attack   = "RMPocalypse"

  when {
    field = "tee.platforms"
    has   = ["sev-snp"]
  }
}

rule "tdx-up-to-date" {
  field    = "tee.evidence.tdx.tcb_status"
  only     = ["UpToDate"]
  reason   = "Any other verdict of Intel's leaves an advisory open."
  controls = ["soc2 CC7.1", "nist-800-53 SI-2"]
  attack   = "TDXdown, TDXploit"

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "tdx-no-grace" {
  field    = "tee.evidence.tdx.tcb_grace"
  present  = false
  severity = "warning"
  reason   = "Grace accepts machines whose flaws are published."
  controls = ["nist-800-53 SI-2"]

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "tdx-evaluation" {
  field    = "tee.evidence.tdx.min_evaluation_number"
  at_least = 20
  reason   = "The host hands on Intel's judgement, and can hand on an old one."
  controls = ["soc2 CC7.1", "nist-800-53 SI-2"]
  attack   = "An old judgement of Intel's, shown to hide a newer one"

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "tdx-service-tds" {
  field    = "tee.evidence.tdx.service_tds"
  present  = false
  reason   = "A service TD may see or move the TD that it is bound to."
  controls = ["nist-800-53 AC-3"]
  attack   = "A service TD that may see or move a TD"

  when {
    field = "tee.platforms"
    has   = ["tdx"]
  }
}

rule "collateral-age" {
  field    = "tee.evidence.max_collateral_age"
  at_most  = "30d"
  reason   = "A revocation that nobody asks for does not count."
  controls = ["nist-800-53 SI-2"]
  attack   = "A list of revoked certificates that is withheld, or old"
}

rule "sealed-model" {
  field    = "model.sealed_header_sha256"
  present  = true
  reason   = "A plain model can be read on the disk, and its key is not released by attestation."
  controls = ["soc2 CC6.7", "nist-800-53 SC-28", "hipaa 164.312(a)(2)(iv)"]
}

rule "model-key" {
  field    = "model.key.provider"
  equals   = "broker"
  reason   = "A broker releases the key after it has judged evidence; any other provider is the operator's or the machine's."
  controls = ["soc2 CC6.1", "nist-800-53 SC-13"]
}

rule "model-key-session" {
  field    = "model.key.broker.session_binding"
  equals   = "required"
  reason   = "Evidence that is bound to no connection can be passed on to the broker."
  controls = ["nist-800-53 SC-8"]
  attack   = "Intra-handshake attestation"

  when {
    field  = "model.key.provider"
    equals = "broker"
  }
}

rule "publisher" {
  field    = "model.publisher"
  present  = true
  severity = "warning"
  reason   = "A signature says whose model it is; a hash says which file."
  controls = ["nist-800-53 CM-14", "nist-800-53 SR-4"]
}

rule "access-pattern" {
  field    = "model.access_pattern"
  none_of  = ["leaks"]
  reason   = "Reads of the disk would tell what a text is about."
  controls = ["soc2 C1.1"]
  attack   = "Choices of experts"
}

rule "state-key" {
  field    = "state.key.provider"
  equals   = "broker"
  reason   = "The log's disk opens for this image and policy only."
  controls = ["nist-800-53 SC-28"]
}

rule "tenants-signed" {
  field    = "tenants.authority"
  present  = true
  reason   = "Someone other than the operator says who may ask, and each key is one tenant's."
  controls = ["soc2 CC6.2", "hipaa 164.312(a)(2)(i)", "nist-800-53 IA-2"]
}

rule "tenants-rollback" {
  field    = "tenants.min_version"
  at_least = 1
  severity = "warning"
  reason   = "An old list would bring back keys that were taken away."
  controls = ["soc2 CC6.3", "nist-800-53 IA-5"]
}

rule "attested-listeners" {
  field    = "service.listen.kind"
  equals   = "ra-tls"
  reason   = "Only a key that is made inside of the TEE and stands in evidence ends the connection there."
  controls = ["soc2 CC6.6", "hipaa 164.312(e)(1)", "nist-800-53 SC-8"]
  attack   = "Diversion: genuine evidence in front of another key"
}

rule "rotation" {
  field    = "service.listen.rotation"
  at_most  = "24h"
  absent   = "passes"
  severity = "warning"
  reason   = "A key that leaks is of use for a day at most."
  controls = ["nist-800-53 SC-13"]
}

rule "session-binding" {
  field    = "service.session_binding"
  equals   = "required"
  reason   = "Evidence of a key, and not of a connection, can be relayed by whoever once got that key."
  controls = ["hipaa 164.312(e)(2)(i)", "nist-800-53 SC-8"]
  attack   = "Intra-handshake attestation"
}

rule "operator-settings" {
  field    = "service.operator_may_set"
  only     = ["listen_address", "listen_port"]
  absent   = "passes"
  reason   = "What the operator may vary is measured nowhere."
  controls = ["soc2 CC8.1", "nist-800-53 CM-3"]
  attack   = "Variables and settings that come after the measurement"
}

rule "log-inside" {
  field    = "audit.sink"
  equals   = "state"
  reason   = "Lines on standard output are the operator's to change before anyone sees them."
  controls = ["soc2 CC7.2", "hipaa 164.312(b)", "nist-800-53 AU-9", "eu-ai-act-12 12(1)"]
}

rule "checkpoints" {
  field    = "audit.checkpoint_interval"
  at_most  = "15m"
  reason   = "Records after the last checkpoint can be lost by a power cut or a rollback."
  controls = ["nist-800-53 AU-9(3)"]
}

rule "witness" {
  field    = "audit.witness"
  count    = 1
  reason   = "Somebody elsewhere remembers the log's head, so that a rollback shows."
  controls = ["soc2 CC7.2", "nist-800-53 AU-9"]
  attack   = "An older state disk"
}

rule "receipts" {
  field    = "audit.receipts"
  equals   = true
  severity = "warning"
  reason   = "A client can prove which model and policy answered."
  controls = ["nist-800-53 AU-10"]
}

rule "rate-limit" {
  field    = "limits.requests_per_minute"
  present  = true
  severity = "warning"
  reason   = "One key that was stolen cannot take the whole machine."
  controls = ["soc2 A1.1"]
}

rule "answer-timeout" {
  field    = "limits.answer_timeout"
  present  = true
  severity = "warning"
  reason   = "An answer without an end holds its place for ever."
  controls = ["soc2 A1.1"]
}
