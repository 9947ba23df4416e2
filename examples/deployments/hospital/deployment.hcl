# A hospital's wards write letters and look up what was said before. Intel TDX in a rented data centre.
# It meets policies/baselines/hipaa.hcl.
#
# The choices: what names a person is taken out on both ways; a conversation may go on for a shift and is then gone;
# key exchange is hybrid, since health records stay sensitive for a lifetime.
#
# Hashes and keys are made up, and `.example` hosts do not exist: README.md beside this folder says what belongs there.

appliance {
  name   = "hospital"
  schema = 2
}

tee {
  platforms        = ["tdx"]
  memory_budget    = "6GiB"
  plaintext_budget = "8MiB"

  evidence {
    max_collateral_age = "30d"

    tdx {
      tcb_status            = ["UpToDate"]
      min_evaluation_number = 20
    }
  }
}

state {
  device = "/dev/vdb"

  key {
    provider = "broker"
    version  = 2

    broker {
      url         = "https://keys.hospital.example"
      root_sha256 = "0417b5937ce6f69628800be501cd3391c5326e2ebd36e9ac740dab0629c360c0"
      resource    = "hospital/state"
    }
  }
}

approvals {
  required = 2

  approver "security" {
    public_key = "ed25519:2776f71eee2c23e4e90d2e714e9ac0df9dfc6f9be57c7821c177a03d326f78c4"
  }
  approver "data-protection" {
    public_key = "ed25519:fd35b785393d3cf1b4319ba1391a2e4a3bdfd4c87f8201107060de90762e6812"
  }
  approver "clinic" {
    public_key = "ed25519:9772e82df94d8090dafb695f66cb8cce3401fa74f0bfb95371a59463963a971b"
  }
}

model "assistant" {
  file                 = "mistral-7b-instruct.Q4_K_M.sealed"
  sha256               = "d716b7f5abcaac2b8f2a3bad52dcdfbcd0034b4d38eef3338e6c47d6e798ce94"
  sealed_header_sha256 = "9ec38b46af3a59a85fd5fee0578dddc1f03895ec5ef7d6c6a6b089cfae928d3d"

  streaming_decrypt   = true # of a rented machine's memory, 8 MiB of weights are in the clear at most
  context_length      = 8192
  kv_cache            = "q8"
  session_persistence = true

  prefix_cache {
    size     = "512MiB"
    lifetime = "30m"
  }

  key {
    provider = "broker"

    broker {
      url         = "https://keys.hospital.example"
      root_sha256 = "0417b5937ce6f69628800be501cd3391c5326e2ebd36e9ac740dab0629c360c0"
      resource    = "hospital/assistant"
    }
  }

  publisher {
    public_key = "ed25519:8dc49429449ff86e4598122c1c6080e494f8ca49b7c070c83406ae0d0649e02a"
    bundle     = "mistral-7b-instruct.sigstore"
  }
}

privacy {
  timing_padding {
    first_token = "100ms"
    total       = "1s"
    jitter      = "10ms"
  }

  size_padding         = "1KiB"
  token_count_rounding = 16
  auditor_key          = "x25519:173a05f862d6fd52800d72dc13e7d6f86a281f483b310de279418ed8630f8867"

  redaction {
    fields    = ["metadata", "user"]
    apply_to  = ["answer", "prompt"]
    detectors = ["credit-card", "date-of-birth", "email", "iban", "ip-address", "national-id", "phone", "secret"]

    pattern "record-number" {
      regex       = "\\bMRN[ -]?[0-9]{6,10}\\b"
      replacement = "[record]"
    }
  }

  retention {
    audit    = "2300d" # six years, and a period of the log's keys
    sessions = "8h"    # a shift
  }
}

limits {
  prompt_tokens       = 6000
  generation_tokens   = 1024
  concurrent_requests = 24
  queued_requests     = 96
  answer_timeout      = "5m"
  requests_per_minute = 30
  tokens_per_day      = 2000000
}

tenants {
  authority   = "ed25519:1b7c289c0e5392b0dc71c9bce0a375e4b3dd22dd83e780ad9075a4a875842d5b"
  list        = "tenants.json"
  min_version = 17
}

service {
  drain_timeout = "1m"

  tls {
    key_exchange = "post-quantum"
  }

  listen "wards" {
    kind     = "ra-tls"
    address  = "0.0.0.0"
    port     = 8443
    names    = ["llm.hospital.example"]
    rotation = "12h"
  }
}

audit {
  sink                = "state"
  checkpoint_interval = "5m"
  receipts            = true

  witness "internal-audit" {
    url        = "https://internal-audit.hospital.example"
    public_key = "ed25519:7f8d37e39e2759fb3929fb4b0a1aebc086c0db2d9cc1cc81959a26a3599c2774"
  }

  timestamp_authority {
    url         = "https://tsa.hospital.example"
    root_sha256 = "13114161129aeeb43e725f098c8806cb4c6c67c1098db14cf90d19ee948097ae"
  }
}
