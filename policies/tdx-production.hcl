# A production deployment on Intel TDX: what sev-snp-production.hcl is for AMD. Intel judges each platform, TDX module
# and quoting enclave by documents that it signs, so that there are no versions to write: `UpToDate` asks for all that
# Intel's advisories ask for. What such a judgement cannot show is in docs/attacks.md.
#
# Where a comment says that a line is the site's choice, public quotes do not show it, or only quotes of one kind of
# machine do. Hashes and keys are made up; `appliance model pin` and `appliance check` say what belongs there.

appliance {
  name   = "acme-production-tdx"
  schema = 2
}

tee {
  platforms        = ["tdx"]
  memory_budget    = "6GiB"
  plaintext_budget = "8MiB"

  evidence {
    debug              = false
    migration          = false # CVE-2025-30513 made migratable TDs debuggable
    smt                = false # the site's choice: where the PCK tells, hyper-threading is off
    max_collateral_age = "30d"

    # The site's choice: `machines { authority, list }` accepts listed machines alone (docs/formats/machine-list.md).

    tdx {
      tcb_status            = ["UpToDate"]
      min_evaluation_number = 20 # the standard judgement of October 2026; raise it with each TCB recovery

      # The site's choice: one kind of machine has one numbering of TDX modules. Module 1.5.24, which mends
      # INTEL-SA-01397, is min_tee_tcb_svn = "0d010000000000000000000000000000"; modules 2.0 count anew.
    }
  }
}

state {
  device = "/dev/vdb"

  key {
    provider = "broker"
    version  = 2

    broker {
      url         = "https://keys.acme.example"
      root_sha256 = "1fcfd0c1a5a7e9a37a3c6f60fc6b6c5c1d43ad4cda8d0b8be0d1f0a4e3d7a6b5"
      resource    = "acme/production/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:ec08b5b9530381069238c587d1b42775f48f1a320af7ea8ef4b958ae41682090"
  }
  approver "data-protection" {
    public_key = "ed25519:a60d0b682bad95e64c5571b3783b2ae6076a9bf612da9804c6fc5b57b1a87e0b"
  }
  approver "platform" {
    public_key = "ed25519:095fa5c3c94336dbcce60da7f0ad4c5a7b0402d8cfcebd672a9facc4c3d3c2cc"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "8a1d5f2f6e0c4f7c1b3a9d0e2c4b6a8f7e5d3c1b0a9f8e7d6c5b4a3928170615"
  sealed_header_sha256 = "3c9e1b7d5f0a8264c2e4d6b8fa1c3e5079b1d3f5a7c9e0b2d4f6a8c0e1b3d5f7"

  streaming_decrypt   = true
  access_pattern      = "hidden"
  context_length      = 8192
  kv_cache            = "q8"
  speculation         = "hidden" # guesses free a place earlier, and show nowhere
  context_shift       = false
  session_persistence = true

  prefix_cache {
    size     = "512MiB"
    lifetime = "10m"
  }

  key {
    provider = "broker"

    broker {
      url         = "https://keys.acme.example"
      root_sha256 = "1fcfd0c1a5a7e9a37a3c6f60fc6b6c5c1d43ad4cda8d0b8be0d1f0a4e3d7a6b5"
      resource    = "acme/production/assistant"
    }
  }

  publisher {
    public_key = "ed25519:99ba96467092bcfba80fd6b460c3e718072b6cdc4ed581f222643252a45ecebe"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "500ms"
    total       = "2s"
    jitter      = "50ms"
    cadence     = "500ms" # a pass of one size at each multiple; `appliance plan-memory` says what it costs
  }

  size_padding         = "4KiB"
  token_count_rounding = 64
  auditor_key          = "x25519:4f2a1b3c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708"

  redaction {
    fields    = ["user", "metadata"]
    detectors = ["credit-card", "email", "iban", "ip-address", "national-id", "phone", "secret"]

    pattern "case-number" {
      regex       = "\\bCASE-[0-9]{6,10}\\b"
      replacement = "[case]"
    }
  }

  retention {
    audit    = "365d"
    sessions = "8h"
  }
}

limits {
  prompt_tokens       = 6000
  generation_tokens   = 512
  concurrent_requests = 64
  queued_requests     = 256
  first_token_timeout = "30s"
  answer_timeout      = "5m"
  requests_per_minute = 60
  tokens_per_minute   = 40000
  tokens_per_day      = 4000000
}

tenants {
  authority   = "ed25519:2385055e832db340b0abcbe0e37ebfd7cbfa4b19e92dd5dd8d2afbe1a29d142c"
  list        = "tenants.json"
  min_version = 17
}

service {
  operator_may_set = ["listen_address"]
  drain_timeout    = "1m"

  listen "public" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["llm.acme.example"]
    rotation = "12h"
  }
  listen "host" {
    kind      = "ra-tls"
    transport = "vsock"
    port      = 8443
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true

  witness "acme-audit" {
    url        = "https://witness.acme.example"
    public_key = "ed25519:9a4837fa669c4de7a30e4d2a348261074883a14156fb4318e3f40216e244782a"
  }

  timestamp_authority {
    url         = "https://tsa.acme.example"
    root_sha256 = "9b1d3f5a7c9e0b2d4f6a8c0e1b3d5f73c9e1b7d5f0a8264c2e4d6b8fa1c3e507"
  }
}
