# Software as a service: many customers share one machine in a cloud that runs SEV-SNP, on Genoa and Turin.
# It meets policies/baselines/eu-ai-act.hcl.
#
# The choices: speed and fairness before hidden times. Weights stay in memory, guesses are made, texts that begin alike
# are read once for each customer; no customer takes more than its places, and a wish that has no effect is passed over.
#
# Hashes and keys are made up, and `.example` hosts do not exist: README.md beside this folder says what belongs there.

appliance {
  name   = "saas"
  schema = 2
}

tee {
  platforms     = ["sev-snp"]
  memory_budget = "12GiB"

  evidence {
    smt = true # a cloud shares cores; the patch levels below mend what is known of it

    sev_snp {
      products             = ["genoa", "turin"]
      signing_keys         = ["vcek"]
      min_report_version   = 5
      min_api              = "1.55"
      committed_is_current = true
      alias_check          = true

      min_tcb "genoa" {
        bootloader          = 10
        snp                 = 27
        microcode           = 81
        launch_mitigations  = "0xb"
        current_mitigations = "0xb"
      }
      min_tcb "turin" {
        fmc                 = 1
        bootloader          = 1
        tee                 = 1
        snp                 = 4
        microcode           = 81
        launch_mitigations  = "0x3f"
        current_mitigations = "0x3f"
      }
    }
  }
}

state {
  device = "/dev/vdb"

  key {
    provider = "broker"
    version  = 2

    broker {
      url         = "https://keys.saas.example"
      root_sha256 = "70e94cba94b5e6222ea619f02caf4390d2d90807c83b76fc6fd1d85488a5daf4"
      resource    = "saas/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:5e2433336739db7e9011f6adc18d46f100b98fc3ce5d1b4d8ffdf1954386ea90"
  }
  approver "product" {
    public_key = "ed25519:5be12b1f94d527aef59a3cdf5c7d1ded8f61826b08bf72a6b9dc52dca8059f9a"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "41c55a04ea6022bc4d8559862d75ebd03280aa049b0853d006c29a00cf76c6af"
  sealed_header_sha256 = "58eb513ef9836c30e89ad54f91541f2ec058b44cb14f74c3504a779871febc74"

  streaming_decrypt = "auto" # resident as far as the memory budget goes
  load              = "boot" # a key with the role admin swaps it, without a restart
  context_length    = 16384
  kv_cache          = "q8"
  speculation       = "on"

  prefix_cache {
    size     = "2GiB"
    lifetime = "10m"
  }

  sampling {
    max_logprobs = 5
  }

  key {
    provider = "broker"

    broker {
      url         = "https://keys.saas.example"
      root_sha256 = "70e94cba94b5e6222ea619f02caf4390d2d90807c83b76fc6fd1d85488a5daf4"
      resource    = "saas/assistant"
    }
  }

  publisher {
    public_key = "ed25519:bee0a92edab6d1dbfba921148b35a34b06351b0cab5fdc8b11026d562c4d3541"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "50ms"
  }

  size_padding         = "256B"
  token_count_rounding = 8
  auditor_key          = "x25519:548a6bff0384c79527fa8a29f57c592d096f01b8d392e9687eb2ce3239b3cd78"

  redaction {
    fields    = ["metadata", "user"]
    detectors = ["secret"] # a customer's keys, pasted by mistake
  }

  retention {
    audit = "400d"
  }
}

limits {
  prompt_tokens       = 12000
  generation_tokens   = 2048
  concurrent_requests = 64
  queued_requests     = 512
  first_token_timeout = "60s"
  answer_timeout      = "10m"
  requests_per_minute = 120
  tokens_per_minute   = 100000
  tokens_per_day      = 20000000
}

tenants {
  authority   = "ed25519:6ebe0eeb11129f8cd375c9946125b66171f54cf6b5feacc8a0aff0674901d73e"
  list        = "tenants.json"
  min_version = 17
}

service {
  drain_timeout = "2m"

  listen "customers" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["api.saas.example"]
    rotation = "24h"
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true

  witness "transparency" {
    url        = "https://transparency.saas.example"
    public_key = "ed25519:f2c02ce2cbd107cf7c21218a748444f45a332ca18e2bde030dc3c6f7fd625db5"
  }

  timestamp_authority {
    url         = "https://tsa.saas.example"
    root_sha256 = "41e30f9f9ac317d00ab954aa38a2b29278def5c43ef9d638e4d30c3b5882bd9a"
  }
}
